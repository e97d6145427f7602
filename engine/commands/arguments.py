"""Arguments and options that several commands share, and how a shell completes them."""

import contextlib
import datetime
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from engine.core.catalogue import ProfileEntry
from engine.core.errors import NotTrustedError
from engine.core.plan.document.places import Places
from engine.core.plan.profile import Profile
from engine.core.plan.programs import trust_detail
from engine.core.terminal_text import visible
from engine.gate import Permit
from engine.planning.profiles import find_profile, list_profiles, read_with_entry
from engine.planning.recipes import names
from engine.planning.trust import permit_of, trust
from engine.runs.listing import all_runs
from engine.runs.paths import runs_folder


class _Bash(BashComplete):
    """bash inserts a completion as it is, so names taken from files are quoted here; zsh and fish quote by themselves."""

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{shlex.quote(item.value) if item.type == 'plain' else item.value}"


add_completion_class(_Bash)


class _Name(click.ParamType[str]):
    """A name that a shell completes. `known`: gives the names that there are. `or_file`: it may also be the path of a file."""

    def __init__(self, name: str, known: Callable[[], Iterable[str]], *, or_file: bool = False) -> None:
        self.name, self._known, self._or_file = name, known, or_file

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin so. Unprintable ones are left out: a line feed would end the item."""
        found = [CompletionItem(one) for one in self._known() if one.startswith(incomplete) and one.isprintable()]
        return found or ([CompletionItem(incomplete, type="file")] if self._or_file else [])


PROFILE_NAME = _Name("profile", lambda: [entry.name for entry in list_profiles()], or_file=True)
RECIPE_NAME = _Name("recipe", names)
RUN_NAME = _Name("run", lambda: [paths.run for paths in all_runs()])
RUN_OR_LOG = _Name("run", lambda: [paths.run for paths in all_runs()], or_file=True)


def is_file(word: str) -> bool:
    """Whether a word means a log rather than a run: it has a slash, or is an existing file, or a folder with no run of that name."""
    return word != "-" and (
        "/" in word or Path(word).is_file() or (Path(word).is_dir() and not (runs_folder() / word).is_dir())
    )


class Age(click.ParamType[float]):
    """A time such as `30d`, `12h`, `90m` or `2w`, in seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d{1,6})([mhdw])", value)
        if found is None:
            self.fail(f"{value!r} is not a time; for example 90m, 12h, 30d or 2w", param, ctx)
        return int(found[1]) * {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}[found[2]]


class Moment(click.ParamType[float]):
    """A time: `10m` ago, `14:05` today, or `2026-11-24T14:05`. In seconds since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        if ago := re.fullmatch(r"(\d{1,9})([smhd])", value):
            return time.time() - int(ago[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[ago[2]]
        with contextlib.suppress(ValueError):
            clock = datetime.time.fromisoformat(value if ":" in value else "")
            return datetime.datetime.combine(datetime.date.today(), clock).timestamp()
        with contextlib.suppress(ValueError, OverflowError, OSError):
            return datetime.datetime.fromisoformat(value).timestamp()
        self.fail(f"{value!r} is not a time; for example 10m (ago), 14:05 (today) or 2026-11-24T14:05", param, ctx)


class Pattern(click.ParamType[re.Pattern[bytes]]):
    """A regular expression for a line."""

    name = "pattern"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[bytes]:
        if isinstance(value, re.Pattern):
            return value
        try:
            return re.compile(value.encode(errors="surrogateescape"))
        except (re.error, RecursionError, OverflowError) as error:
            self.fail(f"{value!r} is not a regular expression: {error}", param, ctx)


PROFILE = click.argument("profile", type=PROFILE_NAME)
RUN = click.argument("run", type=RUN_NAME)
SECRETS = click.option(
    "--show-secrets", is_flag=True, help="Show what looks like a token or a password, instead of hiding it."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
DETACH = click.option("--detach", "-d", is_flag=True, help="Print the run's id and return.")
COLD = click.option("--cold", is_flag=True, help="Use no template of an earlier launch, and leave none.")
AFTER = click.option(
    "--after", metavar="RUN", type=RUN_NAME, help="Put it into the queue, and start it once RUN has ended."
)
TRUST = click.option(
    "--trust", "trusts", is_flag=True, help="Trust the profile with this content: programs that it names may run."
)
SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the profile, such as layout.ranks_per_node=2 or env.NCCL_DEBUG=INFO. Can be repeated.",
)


class Given(NamedTuple):
    """The profile that a command was given. `places`: lines of the profile's keys, for errors. `entry`: its file, without the overrides,
    for its permit. `is_path`: the user named its path."""

    profile: Profile
    places: Places
    entry: ProfileEntry
    is_path: bool


def read_given(word: str, overrides: tuple[str, ...] = ()) -> Given:
    """Reads the profile that a command was given. `word`: a name or a file. `overrides`: words `section.key=value`."""
    path = find_profile(word)
    return Given(*read_with_entry(path, overrides), is_path=path == Path(os.path.expanduser(word)))


def permit_to_look(given: Given, *, trusts: bool) -> Permit:
    """The permit of a command that only looks; it never asks. `trusts`: the user has said --trust."""
    return trust(given.entry) if trusts else permit_of(given.entry)


def permit_to_run(given: Given, *, trusts: bool, by_path: bool = True) -> Permit:
    """The permit of a command that runs programs of a profile. Asks, if the profile is not the user's own and not trusted yet. `trusts`: the
    user has said --trust. `by_path`: naming the file is a yes. Raises NotTrustedError: there is nobody to ask."""
    entry, permit = given.entry, permit_of(given.entry)
    if not (permit.may_start or trusts or (by_path and given.is_path) or entry.profile is None):
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            way = f"name its file, {shlex.quote(str(entry.path))}, or add --trust" if by_path else "add --trust"
            raise NotTrustedError(f"{entry.path} may be of somebody else, and is not trusted", hint=way)
        for line in trust_detail(entry.profile, str(entry.path)).splitlines():
            click.echo(visible(line), err=True)
        click.confirm(f"Trust {entry.name}?", default=False, abort=True, err=True)
        trusts = True
    return trust(entry) if trusts or by_path else permit
