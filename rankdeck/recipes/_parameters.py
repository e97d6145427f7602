"""Parameters of a recipe, declared once as a dataclass: the command line is built from it here. The engine reads the same declaration
from the source (`engine/planning/recipes.py`), so a declaration consists of literals. Both refuse the same words with the same sentences."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar, Union

Value = Union[int, float, str, bool]
T = TypeVar("T")

_KINDS: dict[object, type[Value]] = {
    key: kind for kind in (int, float, str, bool) for key in (kind, kind.__name__, repr(kind.__name__))
}
"""Types of parameters by their annotations, which are strings after `from __future__ import annotations`."""

MEND = "correct the script"  # the next step where the declaration is wrong
PRESET = "preset"  # the argument that chooses a preset; no parameter has this name


@dataclasses.dataclass(frozen=True)
class Declared:
    default: Value
    help: str
    low: float | None = None
    high: float | None = None
    unit: str = ""
    choices: tuple[Value, ...] = ()
    pattern: str = ""
    presets: Mapping[str, Value] = dataclasses.field(default_factory=dict)


def parameter(
    default: T,
    help: str,  # noqa: A002 - argparse's word
    *,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    choices: Sequence[T] = (),
    pattern: str = "",
    presets: Mapping[str, T] | None = None,
) -> T:
    """A field of a recipe's `Parameters`. All arguments must be literals: the app reads them from the source.

    Args:
        default: the value if the command line does not give one.
        help: what it means, in a few words.
        low: the smallest valid number; None: no limit.
        high: the largest valid number; None: no limit.
        unit: unit of the number, such as `steps`.
        choices: the valid values; empty: any.
        pattern: a regular expression that the whole text must match; empty: any text.
        presets: values by the name of a preset.
    """
    declared = Declared(
        default=default,  # type: ignore[arg-type]
        help=help,
        low=low,
        high=high,
        unit=unit,
        choices=tuple(choices),  # type: ignore[arg-type]
        pattern=pattern,
        presets=presets or {},  # type: ignore[arg-type]
    )
    field: T = dataclasses.field(default=default, metadata={"declared": declared})
    return field


def read_parameters(parameters: type[T], argv: Sequence[str] | None = None) -> T:
    """Reads the command line of a recipe. A value on it wins over the preset, and the preset over the default.

    Args:
        parameters: a dataclass whose fields are made by `parameter`.
        argv: the words; None: those of this process.

    Returns:
        An instance of `parameters`.

    Raises:
        SystemExit: status 2: a word or the declaration is wrong, and one line on stderr says what. Status 0: help was asked for.
    """
    parser = argparse.ArgumentParser(
        description=sys.modules[parameters.__module__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
        argument_default=argparse.SUPPRESS,
    )
    arguments: dict[str, tuple[type[Value], Declared]] = {}
    presets: dict[str, dict[str, Value]] = {}
    for field in dataclasses.fields(parameters):  # type: ignore[arg-type]
        kind, declared = _KINDS.get(field.type), field.metadata.get("declared")
        if kind is None or declared is None or field.name == PRESET:
            known = "name: int = parameter(DEFAULT, HELP), or float, str or bool"
            _fail(parser, f"{parameters.__name__}.{field.name} is not declared like {known}", MEND)
        for where, value in {"default": declared.default, **declared.presets}.items():
            if problem := _problem(kind, declared, value):
                _fail(parser, f"{parameters.__name__}.{field.name}: {where} {problem}", MEND)
        for name, value in declared.presets.items():
            presets.setdefault(name, {})[field.name] = kind(value)
        arguments[field.name] = kind, declared
    if presets:
        choice = Declared(default="", help="values that go together", choices=tuple(presets))
        arguments = {PRESET: (str, choice), **arguments}
    for name, (kind, declared) in arguments.items():
        _add(parser, name, kind, declared)
    try:
        given, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        _fail(parser, f"{error.argument_name}: {error.message}")
    if rest:
        _fail(parser, f"there is no argument {rest[0]!r}")
    values = vars(given)
    return parameters(**{**presets.get(values.pop(PRESET, ""), {}), **values})


def takes(kind: str, low: float | None, high: float | None, choices: Sequence[Value]) -> str:
    """The values that a parameter takes, in words: `a whole number from 1 to 8`."""
    if choices:
        return f"one of {', '.join(str(choice) for choice in choices)}"
    noun = {"int": "a whole number", "float": "a number", "bool": "yes or no"}.get(kind, "a text")
    least, most = (f"{limit:g}" if isinstance(limit, float) else str(limit) for limit in (low, high))
    if low is not None and high is not None:
        return f"{noun} from {least} to {most}"
    if low is not None:
        return f"{noun} of {least} or more"
    return f"{noun} of {most} or less" if high is not None else noun


def _add(parser: argparse.ArgumentParser, name: str, kind: type[Value], declared: Declared) -> None:
    flag = f"--{name.replace('_', '-')}"
    facts = [takes(kind.__name__, declared.low, declared.high, declared.choices), declared.unit]
    if declared.default != "":
        facts.append(f"default {_word(declared.default)}")
    facts += [f"{preset} {_word(value)}" for preset, value in declared.presets.items()]
    text = f"{declared.help} ({'; '.join(fact for fact in facts if fact)})".replace("%", "%%")
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
    else:
        parser.add_argument(flag, type=_reader(kind, declared), metavar=kind.__name__, help=text)


def _word(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _problem(kind: type[Value], declared: Declared, value: Value) -> str:
    """The problem with a value in the declaration; empty: none."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        return f"{value!r} is not of type {kind.__name__}"
    if kind is not bool:
        try:
            _reader(kind, declared)(str(value))
        except argparse.ArgumentTypeError as error:
            return str(error)
    return ""


def _reader(kind: type[Value], declared: Declared) -> Callable[[str], Value]:
    """Makes a value of a word, which must be as declared."""

    def read(word: str) -> Value:
        try:
            value: Value | None = kind(word)
        except ValueError:
            value = None
        if value is None or not _is_valid(value, declared):
            if declared.pattern:
                raise argparse.ArgumentTypeError(f"{word!r} is not understood: {declared.help}")
            wanted = takes(kind.__name__, declared.low, declared.high, declared.choices)
            raise argparse.ArgumentTypeError(f"{word!r} is not {wanted}")
        return value

    return read


def _is_valid(value: Value, declared: Declared) -> bool:
    if declared.choices:
        return value in declared.choices
    if isinstance(value, str):
        return not declared.pattern or re.fullmatch(declared.pattern, value) is not None
    least = -math.inf if declared.low is None else declared.low
    most = math.inf if declared.high is None else declared.high
    return least <= value <= most and abs(value) != math.inf


def _fail(parser: argparse.ArgumentParser, said: str, following: str = "--help lists the arguments") -> NoReturn:
    print(f"{parser.prog}: error: {said} ({following})", file=sys.stderr)  # noqa: T201 - as argparse does
    raise SystemExit(2)
