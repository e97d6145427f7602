"""The grid of a sweep: axes from the command line, and the points that are run. Pure."""

import csv
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import tomli

from engine.core.errors import UsageError
from engine.core.plan.document.places import printable
from engine.core.plan.profile import all_keys
from engine.core.plan.settings import NOT_COMPARED
from engine.core.words import suggestion

MOST = 1000  # runs of one sweep
ENVIRONMENTS = (("env",), ("backend", "env"))  # tables of a profile with keys of any name


class Axis(NamedTuple):
    """One setting of a sweep. `key`: its place in the profile; empty: it is an argument of the program. `said`: the words of the command
    line, for errors."""

    name: str
    key: tuple[str, ...]
    values: tuple[Any, ...]
    said: str


def argument_axis(word: str) -> Axis:
    """The axis of `--arg NAME=V1,V2`. A value with a comma stands in double quotes. Raises UsageError."""
    name, equals, text = word.partition("=")
    said = printable(f"--arg {word}")
    if not equals or not name.strip("-+"):
        raise UsageError(f"{said} is not NAME=V1,V2", hint="for example: --arg lr=1e-4,3e-4")
    try:
        values = tuple(next(csv.reader([text], strict=True), []))
    except csv.Error as error:
        raise UsageError(f"{said} can't be read: {error}", hint='a value with a comma: "0.9,0.99"') from None
    if "" in values:
        raise UsageError(f"{said} has an empty value", hint="remove a comma")
    return _checked(Axis(name, (), values, said))


def key_axis(word: str) -> Axis:
    """The axis of `--over KEY='[…]'`. Raises UsageError."""
    name, equals, text = word.partition("=")
    key, said = tuple(part.strip() for part in name.split(".")), printable(f"--over {word}")
    example = "for example: --over layout.ranks_per_node='[1, 2]'"
    if not equals or not all(key):
        raise UsageError(f"{said} is not KEY='[V1, V2]'", hint=example)
    known = all_keys()
    if key not in known and not (len(key) > 1 and key[:-1] in ENVIRONMENTS):
        hint = suggestion(".".join(key), map(".".join, known), "docs/profiles.md lists the keys of a profile")
        raise UsageError(f"{said}: there is no key {printable('.'.join(key))}", hint=hint)
    if key[0] in NOT_COMPARED:
        raise UsageError(f"{said}: {key[0]} does not change what a run does", hint="choose another key")
    try:
        values = tomli.loads(f"values = {text}")["values"]
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or "\n" in text:
        raise UsageError(f"{said} is not a TOML list", hint=example)
    return _checked(Axis(".".join(key), key, tuple(values), said))


def _checked(axis: Axis) -> Axis:
    if not axis.values:
        raise UsageError(f"{axis.said} has no values", hint="give at least one")
    texts = [value_text(value) for value in axis.values]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise UsageError(f"{axis.said} has {printable(twice)} twice", hint="each value is run once")
    return axis


def value_text(value: Any) -> str:
    """A value of an axis in one line."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


Draw = Callable[[Sequence[int], int], Sequence[int]]
"""Gives some of many numbers, none twice, as `random.Random.sample` does."""


def grid(axes: Sequence[Axis], number: int = 0, draw: Draw | None = None) -> list[tuple[Any, ...]]:
    """The points of a sweep: one value of each axis. `axes`: the last one changes fastest. `draw`: draws them; None: all points, in order.
    Raises UsageError: two axes are the same, or there are too many points or too few."""
    if not axes:
        raise UsageError("a sweep needs values", hint="for example: --arg lr=1e-4,3e-4,1e-3")
    names = [axis.name.lstrip("-").replace("_", "-") for axis in axes]
    if same := next((axis for axis, name in zip(axes, names, strict=True) if names.count(name) > 1), None):
        raise UsageError(f"{same.name} is given twice", hint="write all of its values behind one option")
    size = math.prod(len(axis.values) for axis in axes)
    if number > size:
        raise UsageError(f"--random {number}: the grid has {size} points", hint="draw fewer, or leave out --random")
    if (number or size) > MOST:
        raise UsageError(f"the sweep has {number or size} runs; the most is {MOST}", hint="--random N draws N of them")
    return [_point(axes, index) for index in (range(size) if draw is None else draw(range(size), number))]


def _point(axes: Sequence[Axis], index: int) -> tuple[Any, ...]:
    values = []
    for axis in reversed(axes):
        index, at = divmod(index, len(axis.values))
        values.append(axis.values[at])
    return tuple(reversed(values))
