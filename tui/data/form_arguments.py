"""The words of a command line as values of the arguments that a program declares, and back. Pure.

Words that no argument takes are kept as they are. Written words may have another order, but mean the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.core.catalogue import Argument
from tui.data.form_lines import BOOL

_OPTION = re.compile(r"-(?!\.?\d|\Z)")
"""Begins an option; a negative number and `-` are values."""


class TakenApart(NamedTuple):
    """A command line: values by the names of arguments, and all other words."""

    values: dict[str, str]
    rest: list[str]


def taken_apart(args: Sequence[str], declared: Sequence[Argument]) -> TakenApart:
    """Values of declared arguments, and all other words unchanged. If an argument of one value is given twice, the last one counts."""
    options = [one for one in declared if not one.is_positional]
    named = {flag: one for one in options if one.type != "bool" for flag in (one.flag.rstrip("="), *one.aliases)}
    flags = {flag: (one.name, BOOL[is_on]) for one in options for flag, is_on in one.flags.items()}
    flags |= {flag: (one.name, BOOL[True]) for one in options if one.type == "bool" for flag in one.aliases}
    values: dict[str, str] = {}
    rest: list[str] = []
    words = list(args)
    loose: list[list[int]] = [[]]  # places in `rest` of words without a flag, in groups between which other words stand
    is_sure = True
    while words:
        word = words.pop(0)
        if word == "--":  # what follows are no arguments with names
            return TakenApart(values, [*rest, word, *words])
        flag, equals, value = word.partition("=")
        if word in flags:
            values |= [flags[word]]
        elif flag in named and _has_value(named[flag], value if equals else None, words):
            values[named[flag].name] = _value(named[flag], value if equals else None, words, values)
        else:
            if _OPTION.match(word) is None:
                is_sure = is_sure and len(rest) == sum(map(len, loose))  # behind an unknown option, it may be its value
                loose[-1].append(len(rest))
            rest.append(word)
            if _OPTION.match(word) is None:
                continue
        loose += [[]] if loose[-1] else []
    groups = [[rest[place] for place in group] for group in loose if group]
    placed = _placed(groups, [one for one in declared if one.is_positional]) if is_sure else None
    if placed is None:
        return TakenApart(values, rest)
    taken = {place for group in loose for place in group}
    return TakenApart(placed | values, [word for place, word in enumerate(rest) if place not in taken])


def _placed(groups: Sequence[Sequence[str]], declared: Sequence[Argument]) -> dict[str, str] | None:
    """Words by the positional arguments that take them; None: they don't fit, or argparse may share them out in another way."""
    if len(groups) > 1 and any(one.is_optional or (one.many and not one.count) for one in declared):
        return None
    words = [word for group in groups for word in group]
    numbers = [f"{{{one.count}}}" if one.count else _NUMBERS[one.is_optional, bool(one.many)] for one in declared]
    found = re.fullmatch("".join(f"(a{number})" for number in numbers), "a" * len(words))
    if found is None:
        return None
    values = {}
    for place, one in enumerate(declared, 1):
        if taken := words[found.start(place) : found.end(place)]:
            values[one.name] = shlex.join(taken) if one.many else taken[0]
    return values


_NUMBERS = {(False, False): "", (True, False): "?", (False, True): "+", (True, True): "*"}
"""How many words a positional argument takes, by whether it may be left out and whether it takes several."""


def misplaced(values: Mapping[str, str], declared: Sequence[Argument]) -> Argument | None:
    """The first positional argument that has no value, if for that reason another one would get a value that is not its own."""
    places = [one for one in declared if one.is_positional]
    told = {one.name: one.words(values[one.name]) for one in places if values.get(one.name)}
    if not told or _placed([[word for words in told.values() for word in words]], places) == {
        one.name: shlex.join(told[one.name]) if one.many else told[one.name][0] for one in places if one.name in told
    }:
        return None
    last = max(place for place, one in enumerate(places) if one.name in told)
    return next((one for one in places[:last] if one.name not in told), None)


def _has_value(argument: Argument, told: str | None, words: Sequence[str]) -> bool:
    """Whether an argument has a value that its line can show: not `--fp16 --lr 1`, nor `sizes=${other}` in place of a list."""
    if argument.many == "list":
        return told is not None and re.fullmatch(r"\[.+\]", told) is not None
    if argument.flag.endswith("="):
        return told is not None
    return told is not None or bool(argument.alone) or _is_value(words)


def _is_value(words: Sequence[str]) -> bool:
    return bool(words) and _OPTION.match(words[0]) is None


def _value(argument: Argument, told: str | None, words: list[str], values: Mapping[str, str]) -> str:
    """The value of an argument, whose words are taken from the others unless it is `told` in one word with its flag."""
    match argument.many:
        case "":
            if told is None and argument.alone and not _is_value(words):
                return argument.alone
            return words.pop(0) if told is None else told
        case "list":
            return shlex.join(one.strip() for one in (told or "")[1:-1].split(","))
        case "again":
            before = values.get(argument.name, "")
            return f"{before} {shlex.quote(words.pop(0) if told is None else told)}".lstrip()
    if told is not None:
        return shlex.quote(told)
    end = next((at for at, word in enumerate(words) if _OPTION.match(word)), len(words))
    end = min(end, argument.count) if argument.count else end
    taken, words[:] = words[:end], words[end:]
    return shlex.join(taken)


def written(values: Mapping[str, str], declared: Sequence[Argument], more: Sequence[str]) -> list[str]:
    """The command line that gives arguments their values.

    Args:
        values: by the names of arguments; without a value, an argument is left out.
        declared: the arguments.
        more: other words.
    """
    places: list[str] = []
    args: list[str] = []
    greedy: list[str] = []  # would take a word that follows them too
    for argument in declared:
        value = values.get(argument.name, "")
        if argument.type == "bool":
            args += [flag for flag, is_on in argument.flags.items() if value == BOOL[is_on]]
        elif value:
            takes_more = argument.many == "words" or value == argument.alone
            (places if argument.is_positional else greedy if takes_more else args).extend(argument.words(value))
    end = more.index("--") if "--" in more else len(more)
    return [*places, *args, *more[:end], *greedy, *more[end:]]
