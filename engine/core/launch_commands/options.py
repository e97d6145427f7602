"""Reads the options of launchers by a table of them, `options.tsv`. Launchers abbreviate, join and spell options in their own ways:
`--nproc_per_node 4`, `--nproc-per=4`, `-n4`, `-np 4`. The table says which spellings a launcher accepts and what each option means here;
a word that is in no table is an error, because it is not known whether the next word is its value."""

from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import Draft, Word, whole_number
from engine.core.tables import read_table, read_words
from engine.core.words import suggestion

Launcher = Literal[
    "torchrun", "accelerate", "deepspeed", "mpirun", "srun", "sbatch", "python", "apptainer", "fabric", "composer", "colossalai",
]  # fmt: skip

_ANYWHERE = ("fabric", "colossalai")  # launchers that find options behind the script too, and leave unknown ones to it
_EXACT = ("mpirun", "python", *_ANYWHERE)  # launchers that do not abbreviate options


class Option(NamedTuple):
    """An option of launchers: a row of the table."""

    launchers: str
    means: str  # the setting that it changes; empty: profiles have no such setting
    takes: str  # number of words that follow it
    names: str
    """Its spellings, or several options that mean the same; `*` at the end: all options with this beginning. `_` and `-` inside of them are
    the same."""
    why: str = ""  # why it is left out, or the name of a row of `reasons.tsv`; empty: rankdeck does so anyway
    sets: str = ""
    """Environment variable of the profile: `NAME` takes the value, `NAME=value` needs none, and with two values it is what stands before the
    first."""

    @property
    def value_count(self) -> int:
        return int(self.takes)


class Given(NamedTuple):
    """An option of a command: the table's row, the word, and the words after it."""

    option: Option
    word: Word
    values: tuple[Word, ...]

    @property
    def value(self) -> Word:
        """Its only value, or the word itself if it has none."""
        return self.values[0] if self.values else self.word

    @property
    def spelled(self) -> str:
        """The option as it was written, without a value that is joined to it."""
        return self.word.text.partition("=")[0]

    @property
    def why(self) -> str:
        return reasons().get(self.option.why, self.option.why)


def reasons() -> dict[str, str]:
    """Why options are left out, by name."""
    return read_words(__package__, "reasons")


@cache
def options_of(launcher: Launcher) -> tuple[Option, ...]:
    return tuple(row for row in read_table(__package__, "options", Option) if launcher in row.launchers.split())


def read_options(words: Sequence[Word], launcher: Launcher) -> tuple[list[Given], list[Word]]:
    """The options of a command, and the words after them. Raises UsageError for an unknown option or a missing value."""
    given: list[Given] = []
    rest: list[Word] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word.text == "--":
            return given, [*rest, *words[at + 1 :]]
        is_option = word.text.startswith("-") and word.text != "-"
        found = _find(word, launcher) if is_option else None
        if found is None and launcher in _ANYWHERE and (rest or not is_option):
            rest.append(word)
            at += 1
            continue
        if not is_option:
            break
        if found is None and (launcher == "sbatch" or (launcher == "srun" and "=" in word.text)):  # a plugin's
            _, equals, value = word.text.partition("=")
            has_value = equals or (at + 1 < len(words) and not words[at + 1].text.startswith("-"))
            option = Option("srun sbatch", "scheduling", "1" if has_value else "0", "", "plugin")
            found = option, value if equals else None
        if found is None:
            raise _unknown(word, launcher)
        option, joined = found
        values = [Word(joined, word.place)] if joined is not None and option.value_count else []
        need = option.value_count - len(values)
        values += words[at + 1 : at + 1 + need]
        if len(values) < option.value_count:
            raise UsageError(f"{word.place}: {word.text} of {launcher} has no value", hint="write the value after it")
        given.append(Given(option, word, tuple(values)))
        at += 1 + need
        if launcher == "python" and option.means == "module":
            break  # all that follows belongs to the module
    return given, [*rest, *words[at:]]


def _find(word: Word, launcher: Launcher) -> tuple[Option, str | None] | None:
    """The option that a word names, and the value that is joined to it; None: the launcher has no such option."""
    text, equals, value = word.text.partition("=")
    joined = value if equals else None
    name = text[:2] + text[2:].replace("_", "-")
    known = [(spelling, one) for one in options_of(launcher) for spelling in one.names.split()]
    for spelling, one in known:
        if name == spelling or (spelling.endswith("*") and name.startswith(spelling[:-1])):
            return one, joined
    if name.startswith("--") and launcher not in _EXACT:
        near = {one for spelling, one in known if spelling.startswith(name)}
        if len(near) == 1:
            return near.pop(), joined
    if not name.startswith("--"):
        for spelling, one in known:
            if one.value_count == 1 and word.text[:2] == spelling and len(word.text) > 2:
                return one, word.text[2:]
    return None


def _unknown(word: Word, launcher: Launcher) -> UsageError:
    text = word.text.partition("=")[0]
    name = text[:2] + text[2:].replace("_", "-")
    spellings = [spelling for one in options_of(launcher) for spelling in one.names.split()]
    hint = suggestion(name, spellings, "leave it out, and set what it means in the profile")
    return UsageError(f"{word.place}: {launcher} has no option {text} that rankdeck knows", hint=hint)


def take_option(draft: Draft, given: Given) -> None:
    """Takes an option whose meaning several launchers share, or leaves it out. Raises UsageError if nothing would do the same."""
    value, sets = given.value, given.option.sets
    match given.option.means:
        case "total":
            draft.total = whole_number(value, "the number of ranks")
        case "ranks":
            draft.ranks = whole_number(value, "the number of ranks on each node")
        case "nodes":
            draft.node_count = whole_number(value, "the number of nodes")
        case "restarts":
            draft.restarts = 0 if value.text == "0" else whole_number(value, "the number of restarts")
        case "hosts":
            draft.nodes += [host for host in value.text.split(",") if host]
        case "hostfile":
            draft.hostfile = value.text
        case "workdir":
            draft.workdir = value.text
        case "variable" if len(given.values) == 2:
            draft.set_env(sets + value.text, given.values[1].text)
        case "variable":
            name, is_set, text = sets.partition("=")
            draft.set_env(name, text if is_set else value.text)
        case "exclude":
            hint = "leave it out, and name the nodes that remain: --nodes gpu01:4,gpu02:4"
            raise UsageError(f"{value.place}: --exclude depends on a hostfile, which is not read", hint=hint)
        case "ssh-port":
            draft.leave_out(given.word.text, f'set layout.ssh_options = ["-p", "{value.text}"]')
        case "module" | "no-python":
            pass  # `take_program` reads it
        case _:
            draft.leave_out(given.spelled, given.why)


def take_program(draft: Draft, given: Sequence[Given], words: list[Word], launcher: str) -> None:
    """Takes the program and its arguments: `words`, after the options `given`. Raises UsageError if there is none."""
    if not words:
        raise UsageError(f"{launcher} is given no program", hint="write the script after its options")
    if any(one.option.means == "no-python" for one in given) and "/" not in words[0].text:
        hint = "write the path of a script or an executable, or import the command that the program runs"
        raise UsageError(f"{words[0].place}: {words[0].text} is no file here", hint=hint)
    is_module = any(one.option.means == "module" for one in given)
    draft.set_program("module" if is_module else "script", words[0], words[1:])
