"""Profile schema 1: what a user saves and shares, checked once and completely.

A key that works is a field here; a key that does not work yet is not, so that nobody relies on a setting which nothing
reads. The dataclasses are the only list of keys: the checks, the nearest-key advice and the editor read it.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec
import tomli

from engine.core.errors import ProfileError
from engine.core.plan.backend_names import AUTO, backends_in
from engine.core.plan.layout import MAX_RANKS, LayoutError, groups_of, parse_nodes
from engine.core.plan.toml_lines import key_lines, line_of

SCHEMA = 1
"""Read and written. A newer file is refused by name, an older one would be converted here."""

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGKILL")
"""What a stop ladder may send: signals that a training script may want to end on."""

_BACKEND_HINT = 'write one, such as "gloo", or one for each device: "cpu:gloo,cuda:nccl"'
_SLURM_JOB = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,9})?\Z")
"""A job or a task of a job array: nothing that `squeue` would take for an option."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of a profile."""


class Backend(Section, frozen=True, kw_only=True):
    """`[backend]`: which process group, and what only it needs."""

    name: str = "gloo"
    fallback: tuple[str, ...] = ()
    timeout: float = 600.0
    env: dict[str, str] = {}


class Layout(Section, frozen=True, kw_only=True):
    """`[layout]`: where ranks go. At most one of `nodes`, `hostfile`, `slurm` and `pbs`."""

    nodes: str | tuple[str, ...] = "localhost"
    hostfile: str | None = None
    slurm: int | str | None = None
    pbs: Literal["current"] | None = None
    ranks_per_node: int | Literal["auto"] = "auto"
    transport: Literal["local", "ssh"] | None = None
    order: Literal["block", "cyclic"] = "block"
    ssh_options: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Where ranks go, in a few words for lists: `gpu[01-04]:8`, `hosts.txt`, `slurm current`."""
        if self.hostfile is not None:
            return self.hostfile
        for name in ("slurm", "pbs"):
            if (job := getattr(self, name)) is not None:
                return f"{name} {job}"
        nodes = self.nodes if isinstance(self.nodes, str) else ",".join(self.nodes)
        return nodes if ":" in nodes else f"{nodes}:{self.ranks_per_node}"


class Recipe(Section, frozen=True, kw_only=True):
    """`[recipe]`: what every rank runs. Exactly one of `name`, `script` and `module`."""

    name: str | None = None
    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()


class Launch(Section, frozen=True, kw_only=True):
    """`[launch]`: how ranks start, and what happens when one ends."""

    python: str | None = None
    setup: str = ""
    workdir: str = "."
    sync: Literal["none", "rsync"] = "none"
    warm: bool = True
    prewarm: bool = True
    on_failure: Literal["hold", "stop", "restart"] = "hold"
    max_restarts: int = 3
    on_disconnect: Literal["keep", "stop"] = "keep"
    lease: float = 600.0
    stop_ladder: tuple[tuple[str, float], ...] = (("SIGINT", 10.0), ("SIGTERM", 10.0), ("SIGKILL", 5.0))


class Metrics(Section, frozen=True, kw_only=True):
    """`[metrics]`: what to read from plain output, besides the shapes that are known."""

    patterns: tuple[str, ...] = ()


class Profile(Section, frozen=True, kw_only=True):
    """A whole profile."""

    schema: Literal[1]
    name: str
    description: str = ""
    backend: Backend = Backend()
    layout: Layout = Layout()
    recipe: Recipe = Recipe()
    launch: Launch = Launch()
    env: dict[str, str] = {}
    metrics: Metrics = Metrics()


Choices = Mapping[tuple[str, ...], Collection[str]]
"""What a key may name where a registry decides, not the schema: `("backend", "name")`, `("recipe", "name")`."""


def parse_profile(text: str, *, file: str, overrides: Sequence[str] = (), choices: Choices | None = None) -> Profile:
    """Reads a profile from TOML text.

    Args:
        text: the document.
        file: what to call it in errors.
        overrides: `section.key=value` words of the command line; the value is TOML, or else a plain string.
        choices: see `check_choices`.

    Raises:
        ProfileError: at the first thing that is wrong, in the order syntax, unknown key, type, sense.
    """
    return parse_with_places(text, file=file, overrides=overrides, choices=choices)[0]


def parse_with_places(
    text: str, *, file: str, overrides: Sequence[str] = (), choices: Choices | None = None
) -> tuple[Profile, Places]:
    """As `parse_profile`, with where its keys stand."""
    try:
        data = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise ProfileError(
            file, error.lineno, "", _sentence(error.msg), hint="see https://toml.io for the syntax"
        ) from None
    except RecursionError:
        raise ProfileError(file, None, "", "is nested too deeply to be a profile") from None
    except ValueError:  # Python reads no number of more digits
        raise ProfileError(file, None, "", "holds a number of thousands of digits") from None
    places = Places(file, key_lines(text))
    for word in overrides:
        path = _apply_override(data, word)
        places.overridden[path] = _printable(f"--set {'.'.join(path)}")
    profile = profile_from_data(data, places)
    check_choices(profile, choices or {}, places)
    return profile, places


class Places:
    """Turns a key path into file and line for an error or a warning."""

    def __init__(self, file: str, lines: dict[tuple[str, ...], int]) -> None:
        self.file = file
        self.lines = lines
        self.overridden: dict[tuple[str, ...], str] = {}

    def error(self, path: tuple[str, ...], reason: str, *, hint: str | None = None) -> ProfileError:
        key, reason = _printable(".".join(path)), _printable(reason)
        for overridden, word in self.overridden.items():
            if path[: len(overridden)] == overridden or overridden[: len(path)] == path != ():
                return ProfileError(word, None, "", reason, hint=hint)
        return ProfileError(self.file, line_of(self.lines, path), key, reason, hint=hint)

    def where(self, path: tuple[str, ...]) -> str:
        """Where a key stands: `profile.toml:12`, or `--set`."""
        if any(path[: len(overridden)] == overridden for overridden in self.overridden):
            return "--set"
        line = line_of(self.lines, path)
        return f"{self.file}:{line}" if line else self.file


def profile_from_data(data: dict[str, Any], places: Places | str) -> Profile:
    """Checks a document that is already parsed (the editor's form, or `parse_profile`).

    Args:
        data: tables and values as tomli gives them.
        places: a name to call the document in errors.

    Raises:
        ProfileError: at the first thing that is wrong.
    """
    if isinstance(places, str):
        places = Places(places, {})
    if "schema" not in data:
        raise places.error((), "has no schema number", hint=f"begin the file with: schema = {SCHEMA}")
    if isinstance(data["schema"], int) and data["schema"] > SCHEMA:
        raise places.error(
            ("schema",), f"is {data['schema']}; this rankdeck reads schema {SCHEMA}", hint="update rankdeck"
        )
    _refuse_unknown_keys(data, Profile, (), places)
    try:
        profile = msgspec.convert(data, Profile)
    except msgspec.ValidationError as error:
        reason, path = _readable(str(error))
        kind = all_keys().get(path)
        if kind == dict[str, str] and (name := _first_odd_name(data, path)) is not None:
            path, kind = (*path, name), str
        raise places.error(path, reason, hint=f"it takes: {type_words(kind)}" if kind else None) from None
    _check_sense(profile, places)
    return profile


def _printable(text: str) -> str:
    """One line that a terminal can show, whatever a file has as a key."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _first_odd_name(data: dict[str, Any], path: tuple[str, ...]) -> str | None:
    """The variable whose value is no string: msgspec says in which table, but not which."""
    table: Any = data
    for part in path:
        table = table[part]
    return (
        next((name for name, value in table.items() if not isinstance(value, str)), None)
        if isinstance(table, dict)
        else None
    )


def check_choices(profile: Profile, choices: Choices, places: Places | str) -> None:
    """Checks keys whose values are names of things that exist or not.

    Args:
        profile: the profile.
        choices: for each such key, the names that exist.
        places: a name to call the document in errors.

    Raises:
        ProfileError: there is nothing of that name; the hint has the nearest one.
    """
    if isinstance(places, str):
        places = Places(places, {})
    for (table, key), known in choices.items():
        for value in _named(getattr(getattr(profile, table), key), table):
            if value not in known:
                near = difflib.get_close_matches(value, known, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"there is: {', '.join(known)}"
                raise places.error((table, key), f"there is no {table} {value!r}", hint=hint)


def _named(value: str | tuple[str, ...] | None, table: str) -> list[str]:
    """What a key's value names: nothing, one thing or several; a backend's name may be made of two."""
    values = [value] if isinstance(value, str) else value or ()
    return [part for one in values for part in (backends_in(one) if table == "backend" else (one,))]


def _sentence(text: str) -> str:
    return text[:1].lower() + text[1:]


_AT = re.compile(r"^(?P<reason>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_PLAIN_NAMES = {"`object`": "a table", "`array`": "a list", "`str`": "a string", "`int`": "a whole number",
                "`float`": "a number", "`bool`": "true or false", "`null`": "nothing"}  # fmt: skip


def _readable(message: str) -> tuple[str, tuple[str, ...]]:
    """Takes msgspec's message apart into a sentence and a key path."""
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


def _refuse_unknown_keys(data: dict[str, Any], section: type[Section], path: tuple[str, ...], places: Places) -> None:
    hints = typing.get_type_hints(section)
    for key, value in data.items():
        if key not in hints:
            raise places.error((*path, key), "unknown key", hint=_nearest_key(key, section, path))
        if isinstance(hints[key], type) and issubclass(hints[key], Section):
            if not isinstance(value, dict):
                raise places.error(
                    (*path, key), f"must be a table, not {value!r}", hint=f"write: [{'.'.join((*path, key))}]"
                )
            _refuse_unknown_keys(value, hints[key], (*path, key), places)
        elif hints[key] is not dict and isinstance(value, dict) and typing.get_origin(hints[key]) is not dict:
            raise places.error((*path, key), "must be a value, not a table")


def all_keys(section: type[Section] = Profile, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every key path that a profile may have, with its type."""
    keys: dict[tuple[str, ...], Any] = {}
    for name, kind in typing.get_type_hints(section).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            keys |= all_keys(kind, (*path, name))
        else:
            keys[(*path, name)] = kind
    return keys


def _nearest_key(key: str, section: type[Section], path: tuple[str, ...]) -> str:
    here = list(typing.get_type_hints(section))
    if close := difflib.get_close_matches(key, here, 1, 0.6):
        return f"did you mean {'.'.join((*path, close[0]))}?"
    elsewhere = {candidate[-1]: candidate for candidate in all_keys()}
    if close := difflib.get_close_matches(key, list(elsewhere), 1, 0.75):
        return f"did you mean {'.'.join(elsewhere[close[0]])}?"
    return f"valid keys here: {', '.join(here)}"


def _apply_override(data: dict[str, Any], word: str) -> tuple[str, ...]:
    key, equals, raw = word.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    said = _printable(f"--set {word}")
    if not equals or not all(path):
        raise ProfileError(said, None, "", "is not key=value", hint="for example: --set layout.ranks_per_node=2")
    try:
        value: Any = tomli.loads(f"value = {raw}")["value"] if "\n" not in raw else raw
    except (ValueError, RecursionError):  # no TOML, or a number of thousands of digits
        value = raw
    kind = all_keys().get(path) or (str if len(path) > 1 and path[:-1] in (("env",), ("backend", "env")) else None)
    if not isinstance(value, str) and kind in (str, str | None, int | str | None):  # 1234_5, a task, is 12345 to TOML
        value = raw
    table = data
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ProfileError(said, None, "", f"{_printable(part)} is a value, not a table")
        table = inner
    table[path[-1]] = value
    return path


def _check_sense(profile: Profile, places: Places) -> None:
    """What types can't say: ranges, names, and keys that exclude each other."""
    if not _PROFILE_NAME.match(profile.name):
        raise places.error(
            ("name",), f"{profile.name!r} can't be a name", hint="letters, digits, dot, dash and underscore, at most 64"
        )
    chosen = [key for key in ("name", "script", "module") if getattr(profile.recipe, key) is not None]
    if len(chosen) != 1:
        said = "names " + " and ".join(chosen) if chosen else "does not say what to run"
        raise places.error(
            ("recipe",), said, hint='set exactly one of: name = "gpt", script = "train.py", module = "pkg.train"'
        )
    if getattr(profile.recipe, chosen[0]) == "":
        raise places.error(("recipe", chosen[0]), "is empty")
    _check_backend(profile.backend, places)
    _check_layout(profile.layout, places)
    for path, seconds in (
        (("backend", "timeout"), profile.backend.timeout),
        (("launch", "lease"), profile.launch.lease),
    ):
        if not 1 <= seconds <= 31_536_000:
            raise places.error(path, f"must be 1 to 31536000 seconds, not {seconds:g}")
    if profile.launch.max_restarts < 0:
        raise places.error(("launch", "max_restarts"), "must not be negative")
    if not profile.launch.stop_ladder:
        raise places.error(
            ("launch", "stop_ladder"), "must have a step", hint='for example: [["SIGTERM", 10], ["SIGKILL", 5]]'
        )
    for name, seconds in profile.launch.stop_ladder:
        if name not in SIGNALS:
            near = difflib.get_close_matches(name.upper(), SIGNALS, 1, 0.5)
            raise places.error(
                ("launch", "stop_ladder"),
                f"there is no signal {name!r} to stop with",
                hint=f"did you mean {near[0]}?" if near else f"one of {', '.join(SIGNALS)}",
            )
        if not 0 <= seconds <= 86_400:
            raise places.error(("launch", "stop_ladder"), f"{name} must wait 0 to 86400 seconds, not {seconds:g}")
    if profile.launch.stop_ladder[-1][0] != "SIGKILL":
        raise places.error(
            ("launch", "stop_ladder"),
            "must end with SIGKILL, or a rank could outlive its run",
            hint='add ["SIGKILL", 5]',
        )
    for table, names in ((("env",), profile.env), (("backend", "env"), profile.backend.env)):
        for name, value in names.items():
            if not _ENV_NAME.match(name):
                raise places.error((*table, name), "can't be the name of an environment variable")
            if "\0" in value:
                raise places.error((*table, name), "holds a NUL byte")
    launch = profile.launch
    for key, text in (("workdir", launch.workdir), ("python", launch.python or ""), ("setup", launch.setup)):
        if "\0" in text:
            raise places.error(("launch", key), "holds a NUL byte")
    for text in (*profile.recipe.args, getattr(profile.recipe, chosen[0])):
        if "\0" in text:
            raise places.error(("recipe",), "holds a NUL byte")
    for pattern in profile.metrics.patterns:
        _check_pattern(pattern, places)


def _check_backend(backend: Backend, places: Places) -> None:
    for key, names in (("name", (backend.name,)), ("fallback", backend.fallback)):
        for name in names:
            try:
                backends_in(name)
            except ValueError as error:
                raise places.error(("backend", key), f"{name!r} {error}", hint=_BACKEND_HINT) from None
    if AUTO in backend.fallback:
        raise places.error(("backend", "fallback"), "auto is a choice by itself", hint='set backend.name = "auto"')
    if backend.name == AUTO and backend.fallback:
        raise places.error(
            ("backend", "fallback"), "goes with a backend that you name", hint="leave it out: auto goes on by itself"
        )
    again = [name for name in backend.fallback if name == backend.name or backend.fallback.count(name) > 1]
    if again:
        raise places.error(("backend", "fallback"), f"{again[0]} would be tried twice")


def _check_layout(layout: Layout, places: Places) -> None:
    given = [name for name in ("hostfile", "slurm", "pbs") if getattr(layout, name) is not None]
    if layout.nodes != "localhost":  # which is also what it is where nobody says anything
        given.insert(0, "nodes")
    if len(given) > 1:
        raise places.error(
            ("layout",),
            f"takes its nodes from {' and '.join(given)}",
            hint='set at most one of: nodes = "gpu[01-04]", hostfile = "hosts.txt", slurm = "current", pbs = "current"',
        )
    ranks = layout.ranks_per_node
    if isinstance(ranks, int) and not 1 <= ranks <= MAX_RANKS:
        raise places.error(("layout", "ranks_per_node"), f"must be 1 to {MAX_RANKS}, not {ranks}")
    try:
        parse_nodes(layout.nodes, ranks, dict.fromkeys(groups_of(layout.nodes), ()))
    except LayoutError as error:
        raise places.error(("layout", "nodes"), str(error), hint=error.hint) from None
    if layout.hostfile == "":
        raise places.error(("layout", "hostfile"), "is empty")
    if layout.slurm is not None and not _is_slurm_job(layout.slurm):
        raise places.error(
            ("layout", "slurm"),
            "is no job",
            hint='"current", a job id such as 1234, or a task of a job array such as "1234_5"',
        )
    for key, texts in (("hostfile", (layout.hostfile or "",)), ("ssh_options", layout.ssh_options)):
        if any("\0" in text for text in texts):
            raise places.error(("layout", key), "holds a NUL byte")


def _is_slurm_job(job: int | str) -> bool:
    if isinstance(job, int):
        return 0 < job < 10**10
    return job == "current" or _SLURM_JOB.match(job) is not None


def _check_pattern(pattern: str, places: Places) -> None:
    path = ("metrics", "patterns")
    try:
        compiled = re.compile(pattern.encode())
    except (re.error, RecursionError, OverflowError, UnicodeEncodeError) as error:
        raise places.error(path, f"{pattern!r} is not a regular expression: {error}") from None
    if not compiled.groupindex:
        raise places.error(path, f"{pattern!r} has no named group", hint=r"for example: 'loss[=: ]+(?P<loss>\S+)'")


def to_toml_data(profile: Profile) -> dict[str, Any]:
    """The profile as tables and values, without what has its default."""

    def trim(section: Section) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for field in msgspec.structs.fields(section):
            value = getattr(section, field.name)
            if isinstance(value, Section):
                if inner := trim(value):
                    data[field.name] = inner
            elif value != (
                field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
            ):
                data[field.name] = (
                    [list(item) if isinstance(item, tuple) else item for item in value]
                    if isinstance(value, tuple)
                    else value
                )
        return data

    return trim(profile)


def type_words(kind: Any) -> str:
    """A type as a user reads it: `block | cyclic`, `number`, `list of [text, number]`."""
    if typing.get_origin(kind) is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(kind))
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return " | ".join(type_words(part) for part in typing.get_args(kind) if part is not type(None))
    if typing.get_origin(kind) is dict:
        return f"table of {type_words(typing.get_args(kind)[1])}"
    if typing.get_origin(kind) is tuple:
        parts = typing.get_args(kind)
        return f"list of {type_words(parts[0])}" if parts[-1] is ... else f"[{', '.join(map(type_words, parts))}]"
    return {str: "text", int: "whole number", float: "number", bool: "true | false"}[kind]
