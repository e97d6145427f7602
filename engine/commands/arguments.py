"""Arguments and options that several commands share, and how a shell completes them."""

from __future__ import annotations

import shlex

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from engine.planning.profiles import list_profiles
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
        names = [entry.name for entry in list_profiles()]
        return _completions(names, incomplete) or [CompletionItem(incomplete, type="file")]


class RunName(click.ParamType[str]):
    """A run's id."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _completions([paths.run for paths in all_runs()], incomplete)


PROFILE = click.argument("profile", type=ProfileName())
RUN = click.argument("run", type=RunName())
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the profile, such as layout.ranks_per_node=2. Can be repeated.",
)
