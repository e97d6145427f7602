"""Reads a profile from TOML text or from parsed data, and explains errors."""

import difflib
import re
import typing
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import tomli

from engine.core.errors import ProfileError
from engine.core.plan.document.checks import Choices, check_choices, check_sense
from engine.core.plan.document.places import Places, key_lines, printable
from engine.core.plan.profile import SCHEMA, Profile, Section, all_keys, table_of, type_words
from engine.core.terminal_text import SURROGATE

AnySection = TypeVar("AnySection", bound=Section)

_AT = re.compile(r"^(?P<reason>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
JOBS = (
    ("layout", "slurm"),
    ("layout", "pbs"),
)  # a site's defaults for these tables apply to profiles that have the table

_PLAIN_NAMES = {"`object`": "a table", "`array`": "a list", "`str`": "a string", "`int`": "a whole number",
                "`float`": "a number", "`bool`": "true or false", "`null`": "nothing"}  # fmt: skip


def parse_with_places(
    text: str,
    *,
    file: str,
    overrides: Sequence[str] = (),
    choices: Choices | None = None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Profile, Places]:
    """Reads a profile from TOML text. `overrides`: `section.key=value` words of the command line; the value is TOML, or else a plain
    string. `choices`: see `check_choices`. `defaults`: the site's values of keys that the text does not set. Raises ProfileError: the first error, in the order syntax, unknown key, type, value."""
    data, places = parsed_toml(text, file=file)
    return profile_with_overrides(below(data, defaults), places, overrides, choices), places


def parsed_toml(text: str, *, file: str) -> tuple[dict[str, Any], Places]:
    """A TOML document as tables and values, and where its keys are written. `file`: its name in errors. Raises ProfileError."""
    try:
        data = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise ProfileError(file, error.lineno, "", reason, hint="see https://toml.io for the syntax") from None
    except RecursionError:
        raise ProfileError(file, None, "", "is nested too deeply") from None
    except ValueError:  # Python limits the digits of a number
        raise ProfileError(file, None, "", "contains a number with thousands of digits") from None
    return data, Places(file, key_lines(text))


def below(data: Mapping[str, Any], defaults: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """A profile's document with defaults for the keys that it does not set. A document without a job gets none. `path`: where both begin."""
    found = dict(data)
    for key, value in defaults.items():
        here = (*path, key)
        if not isinstance(value, Mapping):
            found.setdefault(key, value)
        elif isinstance(inner := data.get(key, None if here in JOBS else {}), Mapping):
            found[key] = below(inner, value, here)
    return found


def profile_with_overrides(
    data: dict[str, Any], places: Places, overrides: Sequence[str] = (), choices: Choices | None = None
) -> Profile:
    """Checks a document that is already parsed, after the overrides of the command line. `places` learns which keys an override has
    set."""
    for word in overrides:
        path = _apply_override(data, word)
        places.overridden[path] = printable(f"--set {'.'.join(path)}")
    profile = profile_from_data(data, places)
    check_choices(profile, choices or {}, places)
    return profile


def profile_from_data(data: dict[str, Any], places: Places | str) -> Profile:
    """Checks a document that is already parsed: the editor's form, or that of `parse_with_places`. `places`: where its keys stand, or the
    name of the document, for errors. Raises ProfileError: the first error."""
    if isinstance(places, str):
        places = Places(places, {})
    if "schema" not in data:
        raise places.error((), "has no schema number", hint=f"begin the file with: schema = {SCHEMA}")
    if isinstance(data["schema"], int) and data["schema"] > SCHEMA:
        hint = "update rankdeck"
        raise places.error(("schema",), f"is {data['schema']}; this rankdeck reads schema {SCHEMA}", hint=hint)
    profile = section_from_data(data, Profile, places)
    if (odd := _undecoded(data)) is not None:
        raise places.error(odd, "is not UTF-8", hint="a profile is UTF-8 text; write another value")
    check_sense(profile, places)
    return profile


def section_from_data(data: dict[str, Any], section: type[AnySection], places: Places) -> AnySection:
    """Tables and values as a section. Raises ProfileError for the first unknown key, else for the first value of a wrong type."""
    _refuse_unknown_keys(data, section, (), places, all_keys(section))
    try:
        return msgspec.convert(data, section)
    except msgspec.ValidationError as error:
        reason, path = _readable(str(error))
        kind = all_keys(section).get(path)
        if kind == dict[str, str] and (name := _first_odd_name(data, path)) is not None:
            path, kind = (*path, name), str
        raise places.error(path, reason, hint=f"it takes: {type_words(kind)}" if kind else None) from None


def _undecoded(value: Any, path: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """The first key with bytes of the command line that are not UTF-8: no file of a run can hold them. None: all is text."""
    match value:
        case str():
            return path if SURROGATE.search(value) else None
        case dict():
            parts = [(one, (*path, key)) for key, item in value.items() for one in (key, item)]
        case list() | tuple():
            parts = [(one, path) for one in value]
        case _:
            return None
    return next((found for one, place in parts if (found := _undecoded(one, place)) is not None), None)


def _first_odd_name(data: dict[str, Any], path: tuple[str, ...]) -> str | None:
    """The variable with a value that is not a string. msgspec names only the table."""
    table: Any = data
    for part in path:
        table = table[part]
    items = table.items() if isinstance(table, dict) else ()
    return next((name for name, value in items if not isinstance(value, str)), None)


def _readable(message: str) -> tuple[str, tuple[str, ...]]:
    """Splits msgspec's message into a sentence and a key path."""
    matched = _AT.match(message)
    assert matched is not None
    path = tuple(
        part for part in re.split(r"[.\[\]]+", matched["path"] or "") if part and part != "..." and not part.isdigit()
    )
    reason = re.sub(
        r"`([^`]*)`",
        lambda m: " or ".join(_PLAIN_NAMES.get(f"`{word.strip()}`", word.strip()) for word in m[1].split("|")),
        matched["reason"],
    )
    if missing := re.match(r"Object missing required field (\w+)", reason):
        return "is missing", (*path, missing[1])
    reason = reason.replace(" or nothing", "").replace("Expected ", "must be ").replace(", got ", ", not ")
    return reason.replace("Invalid enum value ", "there is no choice "), path


def _refuse_unknown_keys(
    data: dict[str, Any],
    section: type[Section],
    path: tuple[str, ...],
    places: Places,
    known: Collection[tuple[str, ...]],
) -> None:
    """`known`: every key path of the document, for hints."""
    hints = typing.get_type_hints(section)
    for key, value in data.items():
        if key not in hints:
            raise places.error((*path, key), "unknown key", hint=_nearest_key(key, section, path, known))
        if (table := table_of(hints[key])) is not None and (table is hints[key] or isinstance(value, dict)):
            if not isinstance(value, dict):
                hint = f"write: [{'.'.join((*path, key))}]"
                raise places.error((*path, key), f"must be a table, not {value!r}", hint=hint)
            _refuse_unknown_keys(value, table, (*path, key), places, known)
        elif hints[key] is not dict and isinstance(value, dict) and typing.get_origin(hints[key]) is not dict:
            raise places.error((*path, key), "must be a value, not a table")


def _nearest_key(key: str, section: type[Section], path: tuple[str, ...], known: Collection[tuple[str, ...]]) -> str:
    here = list(typing.get_type_hints(section))
    if close := difflib.get_close_matches(key, here, 1, 0.6):
        return f"did you mean {'.'.join((*path, close[0]))}?"
    elsewhere = {candidate[-1]: candidate for candidate in sorted(known, key=len, reverse=True)}
    if close := difflib.get_close_matches(key, list(elsewhere), 1, 0.75):
        return f"did you mean {'.'.join(elsewhere[close[0]])}?"
    return f"valid keys here: {', '.join(here)}"


def _apply_override(data: dict[str, Any], word: str) -> tuple[str, ...]:
    key, equals, raw = word.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    said = printable(f"--set {word}")
    if not equals or not all(path):
        raise ProfileError(said, None, "", "is not key=value", hint="for example: --set layout.ranks_per_node=2")
    try:
        value: Any = tomli.loads(f"value = {raw}")["value"] if "\n" not in raw else raw
    except (ValueError, RecursionError):  # no TOML, or a number of thousands of digits
        value = raw
    kind = all_keys().get(path) or (str if len(path) > 1 and path[:-1] in (("env",), ("backend", "env")) else None)
    if not isinstance(value, str) and kind in (str, str | None, int | str | None):  # 1234_5, a task, is 12345 to TOML
        value = raw
    set_key(data, path, value, said)
    return path


def set_key(data: dict[str, Any], path: tuple[str, ...], value: Any, said: str) -> None:
    """Sets a key of a document. `said`: the words of the command line that do so. Raises ProfileError: a table on the way is a value."""
    table = data
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ProfileError(said, None, "", f"{printable(part)} is a value, not a table")
        table = inner
    table[path[-1]] = value
