"""The words of a command line as values of the arguments that a program declares, and back. Pure. Words that no argument takes are kept
as they are. Written words may have another order, but mean the same."""

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from engine.core.arguments.argument import BOOL, Argument

OPTION = re.compile(r"-(?!\.?\d|\Z)")  # begins an option; a negative number and `-` are values


class TakenApart(NamedTuple):
    """A command line: values by the names of arguments, and all other words."""

    values: dict[str, str]
    rest: list[str]


class _Item(NamedTuple):
    """Words that belong together. `name`: the argument that they name; `value`: its value; empty: no argument takes them."""

    words: list[str]
    name: str = ""
    value: str = ""

    @property
    def is_option(self) -> bool:
        return not self.value and OPTION.match(self.words[0]) is not None

    @property
    def is_loose(self) -> bool:
        return not self.value and not self.is_option


def taken_apart(args: Sequence[str], declared: Sequence[Argument]) -> TakenApart:
    """Values of declared arguments, and all other words unchanged. If an argument of one value is given twice, the last one counts."""
    end = args.index("--") if "--" in args else len(args)  # what follows are no arguments with names
    known = {one.name: one for one in declared}
    items = _items(list(args[:end]), declared)
    is_sure = end == len(args)
    first = next((place for place, one in enumerate(items) if one.is_option), len(items))
    behind = [place for place in range(first + 1, len(items)) if items[place].is_loose]
    if behind:  # they may be values of options that are not known
        is_sure = False
        if any(items[place - 1].value for place in behind):  # they are none now, but would be without the words between
            return TakenApart({}, list(args))
    values: dict[str, str] = {}
    for one in items:
        before = values.pop(one.name, "")
        if one.value:
            values[one.name] = f"{before} {one.value}".lstrip() if known[one.name].many == "again" else one.value
    placed = _placed(items, [one for one in declared if one.is_positional]) if is_sure else None
    rest = [one for one in items if not one.value and (placed is None or not one.is_loose)]
    return TakenApart((placed or {}) | values, [*(word for one in rest for word in one.words), *args[end:]])


def _items(words: list[str], declared: Sequence[Argument]) -> list[_Item]:
    options = [one for one in declared if not one.is_positional]
    named = {flag: one for one in options if one.type != "bool" for flag in (one.flag.rstrip("="), *one.aliases)}
    flags = {flag: (one.name, BOOL[is_on]) for one in options for flag, is_on in one.flags.items()}
    flags |= {flag: (one.name, BOOL[True]) for one in options if one.type == "bool" for flag in one.aliases}
    items = []
    while words:
        before = list(words)
        word = words.pop(0)
        flag, equals, told = word.partition("=")
        name, value = flags.get(word, ("", ""))
        if (argument := named.get(flag)) and (equals or not argument.flag.endswith("=")):
            name = argument.name
            value = _value(argument, told if equals else None, words)
        items.append(_Item(before[: len(before) - len(words)], name, value))
    return items


def _placed(items: Sequence[_Item], declared: Sequence[Argument]) -> dict[str, str] | None:
    """Words by the positional arguments that take them; None: they don't fit, or argparse may share them out in another way."""
    groups = [list(group) for is_loose, group in groupby(items, lambda one: one.is_loose) if is_loose]
    if len(groups) > 1 and any(one.is_optional or (one.many and not one.count) for one in declared):
        return None
    words = [word for group in groups for one in group for word in one.words]
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
    if not told or _placed([_Item([word]) for words in told.values() for word in words], places) == {
        one.name: shlex.join(told[one.name]) if one.many else told[one.name][0] for one in places if one.name in told
    }:
        return None
    last = max(place for place, one in enumerate(places) if one.name in told)
    return next((one for one in places[:last] if one.name not in told), None)


def _value(argument: Argument, told: str | None, words: list[str]) -> str:
    """The value of an argument, whose words are taken from the others unless it is `told` in one word with its flag. Empty: the value can't
    be shown in its line, as with `--fp16 --lr 1`, or `sizes=${other}` in place of a list."""
    if argument.many == "list":
        is_list = told is not None and re.fullmatch(r"\[.+\]", told) is not None
        return shlex.join(one.strip() for one in (told or "")[1:-1].split(",")) if is_list else ""
    if told is not None:
        return shlex.quote(told) if argument.many else told
    if not words or OPTION.match(words[0]):
        return argument.alone
    if argument.many != "words":
        return shlex.quote(words.pop(0)) if argument.many else words.pop(0)
    end = next((at for at, word in enumerate(words) if OPTION.match(word)), len(words))
    end = min(end, argument.count) if argument.count else end
    taken, words[:] = words[:end], words[end:]
    return shlex.join(taken)


def written(values: Mapping[str, str], declared: Sequence[Argument], more: Sequence[str]) -> list[str]:
    """The command line that gives arguments their values. `values`: by the names of arguments; without a value, an argument is left out."""
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
