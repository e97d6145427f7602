"""Sets one argument of a command line by its name, in the form that the command line has: `--lr X`, `--lr=X` or `lr=X`. Pure."""

import re
from collections.abc import Sequence

from engine.core.arguments.argument import Argument
from engine.core.arguments.words import OPTION
from engine.core.errors import UsageError

_ASSIGNMENT = re.compile(r"\+{0,2}[A-Za-z_][\w.]*=")  # begins a word `lr=X`, as hydra takes it
_ARGS = "write all arguments: --over recipe.args='[[…], […]]'"


def with_argument(args: Sequence[str], name: str, value: str, declared: Sequence[Argument]) -> list[str]:
    """The command line with another value of an argument. `args`: words of the command line; those after `--` stay as they are. `name`: the
    argument, with or without its dashes; `_` and `-` are the same. `declared`: arguments that the program declares, as far as is known.
    Raises UsageError: the argument takes no single value, or the program refuses this one."""
    known = next((one for one in declared if _plain(one.flag or one.name) == _plain(name)), None)
    _check(known, name, value)
    end = args.index("--") if "--" in args else len(args)
    words = list(args[:end])
    places = [place for place, word in enumerate(words) if _names(word, name)]
    if len(places) > 1:
        raise UsageError(f"the arguments have {name} twice", hint="remove one of them")
    if not places:
        return [*words, *_added(words, name, value, known), *args[end:]]
    place = places[0]
    flag, equals, _ = words[place].partition("=")
    if equals:
        words[place] = f"{flag}={value}"
        return [*words, *args[end:]]
    behind = next((at for at in range(place + 1, end) if OPTION.match(words[at])), end) - place - 1
    if behind == 0:
        raise UsageError(f"{flag} has no value in the arguments", hint=_ARGS)
    if behind > 1 and known is None:
        said = " ".join(words[place : place + behind + 1])
        hint = f"write {flag}={words[place + 1]} in the profile"
        raise UsageError(f"{said!r} may be one value or several", hint=hint)
    words[place : place + 2] = [f"{flag}={value}"] if _is_one_word(flag, value) else [flag, value]
    return [*words, *args[end:]]


def _plain(name: str) -> str:
    return name.lstrip("-+").rstrip("=").replace("_", "-")


def _names(word: str, name: str) -> bool:
    """Whether a word is the argument, or begins with it."""
    is_one = OPTION.match(word) or _ASSIGNMENT.match(word)
    return bool(is_one) and _plain(word.partition("=")[0]) == _plain(name)


def _check(known: Argument | None, name: str, value: str) -> None:
    if known is None:
        return
    if known.type == "bool" or known.is_positional or known.many:
        kind = "an option without a value" if known.type == "bool" else "not one value behind its name"
        raise UsageError(f"the program declares {name} as {kind}", hint=_ARGS)
    if problem := known.problem(value):
        raise UsageError(f"{name}: {problem}", hint=known.described)


def _is_one_word(flag: str, value: str) -> bool:
    """Whether a value must stand in one word with its flag, because it would be read as an option."""
    return value.startswith("-") and flag.startswith("--")


def _added(words: Sequence[str], name: str, value: str, known: Argument | None) -> list[str]:
    """The words that give an argument its value where the command line does not have it."""
    if known is not None:
        return known.words(value)
    has_options = any(map(OPTION.match, words))
    if not name.startswith("-") and not has_options and any(map(_ASSIGNMENT.match, words)):
        return [f"{name}={value}"]
    flag = name if name.startswith("-") else f"--{name}"
    return [f"{flag}={value}"] if _is_one_word(flag, value) else [flag, value]
