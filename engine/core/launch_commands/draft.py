"""The profile that a command of another launcher becomes: what is known of it while the command is read."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.core.errors import UsageError
from engine.core.plan.rank import literal

DOLLAR, BACKTICK = "\ue000", "\ue001"  # stand for `$` and a backtick that the shell takes literally
LITERAL = {"$": ord(DOLLAR), "*": 0xE002, "?": 0xE003, "{": 0xE004}  # what stands for characters between quotes
NEEDS_SHELL = re.compile(r"[$`]")
_OF_TASK = set("SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_TASK_PID PWD OLDPWD RANDOM SECONDS".split())
# What the shell replaces by names of files, or by several words.
_PATTERN = re.compile(r"[*?]|\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}")
_VARIABLE = re.compile(r"\$\{?((?<=\{)[A-Za-z_]\w*(?=\})|(?<!\{)[A-Za-z_]\w*)\}?")


def as_written(text: str) -> str:
    """A text in which `$` is written as such, wherever the shell takes it literally."""
    return text.translate({mark: sign for sign, mark in LITERAL.items()} | {ord(BACKTICK): "`"})


class Word(NamedTuple):
    """One word of a command, and its place, for messages."""

    text: str
    place: str


class Note(NamedTuple):
    """Something in a command that the profile does not contain: the words, and why, with the next step if there is one."""

    what: str
    why: str


def left_out(notes: Iterable[Note]) -> list[str]:
    """A sentence for each reason for which something is not in the profile."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for note in notes:
        by_reason[note.why].append(note.what)
    return [f"left out: {', '.join(what)}: {why}" for why, what in by_reason.items()]


SET_BY_RANKDECK = frozenset(
    "MASTER_ADDR MASTER_PORT RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK NNODES NPROC_PER_NODE".split()
)
"""Environment variables of launchers. rankdeck sets those that scripts read."""

RELATIVE = re.compile(r"(?:^|[;&|\s])(?:source|\.)\s+[\"']?(?![/~$\"'<\s])|(?:^|[\s=])\./")
"""A line of setup that depends on the folder."""


@dataclass(kw_only=True)
class Draft:
    """The values read from a command so far. None and empty: the command gives none."""

    kind: str = ""  # the key of `[recipe]` that names the program: `script` or `module`
    target: str = ""
    args: list[str] = field(default_factory=list)
    python: str = ""
    workdir: str = ""
    setup: list[str] = field(default_factory=list)
    wrap: list[str] = field(default_factory=list)  # `launch.wrap`
    env: dict[str, str] = field(default_factory=dict)
    backend: str = "auto"
    nodes: list[str] = field(default_factory=list)  # with `:8` behind a node if its ranks are known
    hostfile: str = ""
    slurm: int | str | dict[str, Any] | None = None
    ladder: list[list[Any]] = field(default_factory=list)  # `launch.stop_ladder`
    node_count: int | None = None
    ranks: int | None = None  # on each node
    total: int | None = None  # on all nodes
    restarts: int = 0
    notes: list[Note] = field(default_factory=list)

    def leave_out(self, what: str, why: str) -> None:
        """Notes that the profile does not contain something."""
        if why and (note := Note(as_written(what), why)) not in self.notes:
            self.notes.append(note)

    def set_env(self, name: str, value: str) -> None:
        """Takes an environment variable, unless rankdeck sets it for each rank."""
        if name in SET_BY_RANKDECK:
            self.leave_out(name, "rankdeck sets it")
        else:
            self.env[name] = as_written(value)

    def set_program(self, kind: str, target: Word, args: list[Word]) -> None:
        """Takes the program. Words that a shell would have replaced stay as they are, with a note."""
        self.kind, self.target = kind, known_text(target, "the program")
        for word in args:
            _refuse_array(word)
            parts = _VARIABLE.split(word.text)  # every second one is a name
            text = "".join(parts[::2])
            if _OF_TASK.intersection(parts[1::2]):
                hint = "write {rank}, {local_rank}, {world_size} or {env.SLURM_NODEID} into recipe.args, or a path without $PWD"
                raise UsageError(f"{word.place}: {as_written(word.text)!r} differs between tasks or folders", hint=hint)
            if NEEDS_SHELL.search(text):
                hint = "write its value into the command"
                raise UsageError(f"{word.place}: only a shell knows {as_written(word.text)!r}", hint=hint)
            if text != word.text:
                self.leave_out(word.text, "each rank gets the value of its node, as one argument")
            elif text.startswith(("<(", ">(", "~/")) or _PATTERN.search(text):
                self.leave_out(text, "no shell expands it: write its value into the profile")
            self.args.append(
                "".join(f"{{env.{one}}}" if at % 2 else literal(as_written(one)) for at, one in enumerate(parts))
            )


def _refuse_array(word: Word) -> None:
    if "[@]" in word.text or "[*]" in word.text:
        raise UsageError(f"{word.place}: {word.text!r} is an array", hint="write its elements into the command")


def known_text(word: Word, meaning: str) -> str:
    """A word that must be known before the run has nodes. Raises UsageError: only a shell on a node knows it."""
    _refuse_array(word)
    if NEEDS_SHELL.search(word.text):
        raise UsageError(
            f"{word.place}: {meaning} is {as_written(word.text)!r}, and the file does not give its value",
            hint="write the value into the command, or export it in the file before",
        )
    return as_written(word.text)


def whole_number(word: Word, meaning: str) -> int:
    """A word as a whole number above 0. Raises UsageError: it is anything else."""
    if word.text.isdecimal() and int(word.text[:9]) > 0:
        return int(word.text[:9])
    hint = "write its value" if "$" in word.text else "write a whole number above 0"
    raise UsageError(f"{word.place}: {meaning} is {as_written(word.text)!r}", hint=hint)


def profile_data(
    draft: Draft, name: str, nodes: str | None = None, *, folder: str = "", is_whole: bool = True
) -> dict[str, Any]:
    """The tables of the profile. `nodes`: where it runs, instead of what the command says; None: as the command says. `folder`: start of its
    relative paths. `is_whole`: False notes what the command lacks, for a form in which the user adds it. Raises UsageError: `is_whole`,
    and the command does not name the nodes that it needs, or its ranks can't be shared evenly."""

    def found(path: str) -> str:
        """A path of the command, which counts from its own folder."""
        return path if not draft.workdir or path.startswith(("/", "~")) else f"{draft.workdir.rstrip('/')}/{path}"

    # Lines with a relative path need it, because they run in another folder.
    before = [f"cd {shlex.quote(folder)}"] if folder and any(map(RELATIVE.search, draft.setup)) else []
    data: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "backend": {"name": draft.backend},
        "layout": _layout(draft, nodes, is_whole=is_whole),
        "recipe": {draft.kind: found(draft.target) if draft.kind == "script" else draft.target, "args": draft.args},
        "launch": {
            **({"python": found(draft.python)} if draft.python else {}),
            **({"workdir": draft.workdir} if draft.workdir else {}),
            **({"wrap": draft.wrap} if draft.wrap else {}),
            **({"setup": "\n".join([*before, *draft.setup])} if draft.setup else {}),
            **({"stop_ladder": draft.ladder} if draft.ladder else {}),
            **({"on_failure": "restart", "max_restarts": draft.restarts} if draft.restarts else {}),
        },
        "env": draft.env,
    }
    return {key: value for key, value in data.items() if value != {}}


def _layout(draft: Draft, nodes: str | None, *, is_whole: bool) -> dict[str, Any]:
    names = [nodes] if nodes else draft.nodes
    count = draft.node_count or max(1, len(names))
    if nodes:
        layout: dict[str, Any] = {"nodes": nodes}
    elif names:
        layout = {"nodes": names}
    elif draft.hostfile:
        layout = {"hostfile": draft.hostfile}
    elif draft.slurm is not None:
        layout = {"slurm": {"nodes": count, **draft.slurm} if isinstance(draft.slurm, dict) else draft.slurm}
    elif count > 1 and not is_whole:
        draft.leave_out(f"{count} nodes", "the command does not name them: write their names into the line nodes")
        layout = {}
    elif count > 1:
        hint = "name them: --nodes gpu[01-02], or --set layout.slurm=current inside a job of Slurm"
        raise UsageError(f"the command runs on {count} nodes and does not name them", hint=hint)
    else:
        layout = {}
    ranks = draft.ranks
    if ranks is None and draft.total is not None and not draft.hostfile:
        ranks, left = divmod(draft.total, count)
        if (left or not ranks) and not is_whole:
            draft.leave_out(f"{draft.total} ranks on {count} nodes", "write gpu01:4,gpu02:2 into the line nodes")
            ranks = None
        elif left or not ranks:
            raise UsageError(
                f"the command starts {draft.total} ranks on {count} nodes, a different number on some of them",
                hint="name the ranks of each node: --nodes gpu01:4,gpu02:2",
            )
    if ranks is not None:
        layout["ranks_per_node"] = ranks
    return layout
