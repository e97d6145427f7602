"""Finds the launcher in a command, and the program that this one starts: srun may start torchrun, and mpirun a Python."""

import re
from collections.abc import Callable, Mapping

from engine.core.errors import UsageError
from engine.core.launch_commands.accelerate import read_accelerate
from engine.core.launch_commands.deepspeed import read_deepspeed
from engine.core.launch_commands.draft import NEEDS_SHELL, SET_BY_RANKDECK, Draft, Word, as_written, known_text
from engine.core.launch_commands.mpirun import read_mpirun
from engine.core.launch_commands.options import read_options, reasons
from engine.core.launch_commands.shell import Statement, statements, words_of
from engine.core.launch_commands.slurm import Job, read_srun
from engine.core.launch_commands.torchrun import read_torchrun
from engine.core.launch_commands.trainers import read_colossalai, read_composer, read_fabric, read_tune

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)?)?\Z")
MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
_WRAPPERS = ("env", "exec", "nohup", "time", "command", "setsid")
"""Commands that change nothing for the words after them."""
_ENVIRONMENTS = ("uv", "poetry", "pipenv", "pdm", "rye", "hatch", "pixi", "conda", "mamba", "micromamba")
"""Programs whose command `run` starts another program in an environment."""
_NAMES_ENVIRONMENT = ("-p", "--python", "--prefix", "-n", "--name", "-e", "--environment")
"""Options of `run` with a value that may be the name of a program: `uv run --python python3.12`."""
_SHELLS = ("bash", "sh")

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "srun", *MPIRUN)  # commands that start ranks
MAX_LOOK = 1 << 16  # characters of a pasted text that decide whether it is a command

_READERS: Mapping[str, tuple[Callable[[Draft, list[Word]], None], str]] = {
    "torchrun": (read_torchrun, ""),
    "deepspeed": (read_deepspeed, ""),
    "accelerate-launch": (read_accelerate, ""),
    "accelerate": (read_accelerate, "launch"),
    "composer": (read_composer, ""),
    "fabric": (read_fabric, "run"),
    "lightning": (read_fabric, "run"),
    "tune": (read_tune, "run"),
    "colossalai": (read_colossalai, "run"),
}
"""By launcher: the function that reads its command, and its subcommand that starts ranks; empty: it has none."""

_LISTED = (
    "rankdeck reads torchrun, python -m torch.distributed.run, accelerate launch, deepspeed, fabric run, lightning run, composer, tune run, "
    "colossalai run, mpirun, srun and sbatch files"
)


def program_of(word: str) -> str:
    """The name of a command without its folder."""
    return word.rpartition("/")[2]


def is_program(word: str) -> bool:
    """Whether a word starts a program that a profile can run, or a launcher of it."""
    name = program_of(word)
    return name in LAUNCHERS or bool(_PYTHON.match(name)) or (name.endswith(".py") and "/" in word)


def starts_ranks(words: list[Word]) -> bool:
    """Whether a command starts ranks, and not just one program."""
    words = [word for word in words if not _ASSIGNMENT.match(word.text)]
    words = words[runs_in_environment(words) :]
    return _is_launcher(words) or any(
        word.text.startswith(("torch.distributed.", "accelerate", "deepspeed")) for word in words[:4]
    )


def _is_launcher(words: list[Word]) -> bool:
    name = program_of(words[0].text) if words else ""
    _, subcommand = _READERS.get(name, (None, None))
    return name in LAUNCHERS or subcommand == "" or [subcommand] == [word.text for word in words[1:2]]


def looks_like_launch(text: str) -> bool:
    """Whether a text that was pasted is a command or a batch file that starts ranks, and not just any text."""
    text = text[:MAX_LOOK]
    words = [Word(word, "") for word in text.split()]
    is_batch = any(line.startswith("#SBATCH") for line in text.splitlines())
    return is_batch or (len(words) > 1 and (starts_ranks(words) or program_of(words[0].text) == "sbatch"))


def read_words(draft: Draft, words: list[Word], job: Job) -> None:
    """Reads a command. Raises UsageError: it starts nothing that rankdeck knows, or an option is unknown."""
    outer = ""
    while True:
        words = _without_environment(draft, words)
        if not words:
            raise UsageError("the command is empty", hint=_LISTED)
        name, rest = program_of(words[0].text), words[1:]
        if name in _SHELLS and (inner := _in_shell(draft, rest, job)):
            words = inner
            continue
        if name in ("apptainer", "singularity") and rest and rest[0].text in ("exec", "run"):
            inside = read_options(rest[1:], "apptainer")[1]
            draft.wrap = [known_text(word, f"a word of {name}") for word in words[: len(words) - len(inside) + 1]]
            words = inside[1:]
            continue
        if name == "srun" and not outer:
            words = read_srun(draft, rest, job)
        elif name in MPIRUN and outer != "mpirun":
            words = read_mpirun(draft, rest)
        else:
            _read_program(draft, words, outer)
            return
        outer = "srun" if name == "srun" else "mpirun"


def _without_environment(draft: Draft, words: list[Word]) -> list[Word]:
    """The words that follow assignments (`A=1`) and commands such as `env`. The assignments become part of the draft."""
    for at, word in enumerate(words):
        if found := _ASSIGNMENT.fullmatch(word.text):
            if NEEDS_SHELL.search(found[2]) and found[1] not in SET_BY_RANKDECK:
                draft.leave_out(word.text, "no shell expands it: write its value into [env]")
            else:
                draft.set_env(found[1], found[2])
        elif begin := runs_in_environment(words[at:]):
            runner = " ".join(one.text for one in words[at : at + begin])
            draft.leave_out(runner, "name the Python of that environment, if it is not the active one: launch.python")
            return _without_environment(draft, words[at + begin :])
        elif program_of(word.text) not in _WRAPPERS:
            return words[at:]
    return []


def runs_in_environment(words: list[Word]) -> int:
    """The number of words before the command that `uv run` or `conda run -n NAME` starts; 0: it is none of these."""
    if len(words) < 2 or program_of(words[0].text) not in _ENVIRONMENTS or words[1].text != "run":
        return 0
    for at, word in enumerate(words[2:], 2):
        is_found = is_program(word.text) or word.text.endswith(".py") or _is_launcher(words[at:])
        if is_found and words[at - 1].text not in _NAMES_ENVIRONMENT:
            return at
    return 0


def _in_shell(draft: Draft, words: list[Word], job: Job) -> list[Word]:
    """The words of the command that a shell runs with `-c`; empty: there is none, or there are several."""
    if len(words) != 2 or words[0].text not in ("-c", "-lc"):
        return []
    found = list(statements(as_written(words[1].text)))
    if len(found) != 1:
        return []
    if found[0].left_out:
        draft.leave_out(", ".join(found[0].left_out), reasons()["output"])
    return words_of(Statement(found[0].text, words[1].place), job.numbers())


def _read_program(draft: Draft, words: list[Word], outer: str) -> None:
    first, rest = words[0], words[1:]
    name, quoted = program_of(first.text), first.text.split()
    if rest and len(quoted) > 1 and is_program(quoted[0]):
        hint = "write options of rankdeck import, such as --print, before the command"
        raise UsageError(f"{first.place}: more words follow a command in quotes", hint=hint)
    if name in _READERS:
        read, subcommand = _READERS[name]
        if subcommand and (not rest or rest[0].text != subcommand):
            hint = f"import a command with {name} {subcommand}"
            raise UsageError(f"{first.place}: {name} does not launch anything here", hint=hint)
        read(draft, rest[1:] if subcommand else rest)
    elif _PYTHON.match(name):
        _read_python(draft, first, rest, outer)
    elif name.endswith(".py"):
        draft.ranks = draft.ranks if outer else 1
        draft.set_program("script", first, rest)
    else:
        raise _unknown(first, rest)


def _read_python(draft: Draft, python: Word, words: list[Word], outer: str) -> None:
    if "/" in python.text:
        draft.python = python.text
    given, rest = read_options(words, "python")
    if any(one.option.means == "code" for one in given):
        raise UsageError(f"{python.place}: python -c has no script", hint="write the code into a file")
    module = next((one.values[0] for one in given if one.option.means == "module"), None)
    for one in given:
        draft.leave_out(one.word.text, one.why)
    match module.text if module else "":
        case "torch.distributed.run":
            read_torchrun(draft, rest)
        case "torch.distributed.launch":
            read_torchrun(draft, rest, passes_local_rank=True)
        case "accelerate.commands.launch":
            read_accelerate(draft, rest)
        case "accelerate.commands.accelerate_cli" if rest[:1] and rest[0].text == "launch":
            read_accelerate(draft, rest[1:])
        case "deepspeed" | "deepspeed.launcher.runner":
            read_deepspeed(draft, rest)
        case _:
            if module is None and not rest:
                hint = "write the script after its options"
                raise UsageError(f"{python.place}: python is given no script", hint=hint)
            if not outer:
                draft.ranks = 1
            if module is not None:
                draft.set_program("module", module, rest)
            else:
                draft.set_program("script", rest[0], rest[1:])


def _unknown(first: Word, rest: list[Word]) -> UsageError:
    name = program_of(first.text)
    if name in _SHELLS:
        file = rest[0].text if rest and not rest[0].text.startswith("-") else ""
        hint = f"import the file: rankdeck import {file}" if file else "import the one that starts the ranks"
        return UsageError(f"{first.place}: {name} runs commands of its own", hint=hint)
    if name == "rankdeck":
        hint = "rankdeck new saves a profile of a script"
        return UsageError(f"{first.place}: this is a command of rankdeck itself", hint=hint)
    if any(is_program(word.text) for word in rest):
        hint = "leave it out: import the command that it starts"
        return UsageError(f"{first.place}: rankdeck does not know {name!r}", hint=hint)
    return UsageError(f"{first.place}: rankdeck does not know {name!r}", hint=_LISTED)
