"""Arguments and options that several commands share, and how a shell completes them."""

from __future__ import annotations

import contextlib
import datetime
import re
import shlex
import time
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from engine.core.plan.key_places import Places
from engine.core.plan.profile import Profile
from engine.planning.profiles import find_profile, list_profiles, read_with_places
from engine.planning.recipes import names
from engine.runs.listing import all_runs


class _Bash(BashComplete):
    """bash inserts a completion as it is, so names taken from files are quoted here; zsh and fish quote by themselves."""

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{shlex.quote(item.value) if item.type == 'plain' else item.value}"


add_completion_class(_Bash)


def _completions(names: list[str], incomplete: str) -> list[CompletionItem]:
    """Completion items for names. Unprintable names are left out: a line feed would end the item."""
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and name.isprintable()]


class ProfileName(click.ParamType[str]):
    """A profile's name or file."""

    name = "profile"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        known = [entry.name for entry in list_profiles()]
        return _completions(known, incomplete) or [CompletionItem(incomplete, type="file")]


class RecipeName(click.ParamType[str]):
    """A recipe's name."""

    name = "recipe"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _completions(list(names()), incomplete)


class RunName(click.ParamType[str]):
    """A run's id."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _completions([paths.run for paths in all_runs()], incomplete)


class RunOrFile(RunName):
    """A run's id, or the path of a log."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return super().shell_complete(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]


def is_file(word: str) -> bool:
    """Whether a word means a log rather than a run: it has a slash, or is an existing file."""
    return word != "-" and ("/" in word or Path(word).is_file())


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


PROFILE = click.argument("profile", type=ProfileName())
RUN = click.argument("run", type=RunName())
SECRETS = click.option(
    "--show-secrets", is_flag=True, help="Show what looks like a token or a password, instead of hiding it."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
DETACH = click.option("--detach", "-d", is_flag=True, help="Print the run's id and return.")
COLD = click.option("--cold", is_flag=True, help="Use no template of an earlier launch, and leave none.")
SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the profile, such as layout.ranks_per_node=2 or env.NCCL_DEBUG=INFO. Can be repeated.",
)


def read_given(profile: str, overrides: tuple[str, ...]) -> tuple[Profile, Places]:
    """Reads the profile that a command was given, with the places of its keys for errors.

    Args:
        profile: a name or a file.
        overrides: words `section.key=value`.
    """
    return read_with_places(find_profile(profile), overrides)
