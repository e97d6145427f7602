"""`rankdeck run` and `rankdeck new`: a program that is named on the command line, without a profile or as a new one."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from engine.client.engine import LocalEngine
from engine.commands.arguments import COLD, DETACH, JSON, SET, ProfileName, RecipeName
from engine.commands.launching import follow_launch
from engine.commands.output import print_line
from engine.core.errors import UsageError
from engine.core.plan.key_places import Places
from engine.core.plan.profile import Profile
from engine.planning.make import with_absolute_paths
from engine.planning.profiles import find_profile, list_profiles, read_profile, save_profile
from engine.planning.programs import Wanted, make_profile
from engine.planning.recipes import names, recipe


class ProgramName(click.ParamType[str]):
    """A script's file or a recipe's name."""

    name = "program"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [*RecipeName().shell_complete(ctx, param, incomplete), CompletionItem(incomplete, type="file")]


class _ProgramArgument(click.ParamType[str]):
    """A word of the program's own command line."""

    name = "argument"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _next_words(ctx, incomplete)


class _ProgramCommand(click.Command):
    """A command whose options end at the program: click itself would go on to complete its own."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if ctx.params.get("program") is None:
            return super().shell_complete(ctx, incomplete)
        return _next_words(ctx, incomplete)


def _next_words(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """What may stand next on a program's command line: values of the argument before it, or arguments.

    Values are choices. Of other texts and of programs that are no recipe, the shell completes files.
    """
    before = [word for word in ctx.params["args"] or () if word != "="]  # bash takes --name=value for three words
    files = [CompletionItem(incomplete, type="file")]
    program = ctx.params["program"]
    if ctx.params.get("is_module") or Path(program).is_file() or program not in names():
        return files
    accepted = {f"--{argument.name}": argument for argument in recipe(program).accepted}
    last = accepted.get(before[-1]) if before else None
    if last is not None and last.type != "bool":
        if not last.choices:
            return files if last.type == "str" else []
        return [CompletionItem(word) for word in map(str, last.choices) if word.startswith(incomplete)]
    offered = [(flag, one.help) for flag, one in accepted.items()]
    offered += [(f"--no-{one.name}", f"not: {one.help}") for one in accepted.values() if one.type == "bool"]
    return [
        CompletionItem(flag, help=said)
        for flag, said in offered
        if flag.startswith(incomplete) and flag not in {word.partition("=")[0] for word in before}
    ]


_Command = TypeVar("_Command", bound=Callable[..., Any])

PROGRAM_WORDS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What follows the program belongs to it."""

_OPTIONS = (
    click.argument("program", type=ProgramName()),
    click.argument("args", nargs=-1, type=_ProgramArgument()),
    click.option(
        "--ranks",
        "-n",
        type=click.IntRange(min=1),
        metavar="N",
        help="Ranks on each node; default: one for each GPU or core.",
    ),
    click.option("--nodes", metavar="NODES", help="Nodes, such as gpu[01-04]; default: this machine."),
    click.option("--backend", "-b", metavar="NAME", help="gloo, nccl, mpi, ucc or auto; default: auto."),
    click.option("--module", "-m", "is_module", is_flag=True, help="PROGRAM is a module, as for python -m."),
    click.option("--python", metavar="PATH", help="The Python of the ranks."),
    click.option(
        "--profile",
        "base",
        type=ProfileName(),
        help="Take everything that the command line leaves open from this profile.",
    ),
    SET,
)


def _with_program(command: _Command) -> _Command:
    """Adds the options that describe a program."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(cls=_ProgramCommand, context_settings=PROGRAM_WORDS)
@_with_program
@click.option("--save", metavar="NAME", help="Also save it as a profile of this name.")
@DETACH
@COLD
@JSON
@click.pass_context
def run(
    ctx: click.Context, /, *, base: str | None, save: str | None, detach: bool, cold: bool, as_json: bool, **wanted: Any
) -> None:
    """Run PROGRAM, a script or a recipe, without a profile.

    What follows PROGRAM goes to it: rankdeck run -n 2 train.py --lr 0.1. The exit status, Ctrl-C and the rest are as for
    rankdeck launch.
    """
    profile, places = make_profile(Wanted(name=save, **wanted), _base(base))
    if save is not None:
        save_new(profile, places)
    ctx.exit(follow_launch(profile, places, detach=detach, cold=cold, as_json=as_json))


@click.command(cls=_ProgramCommand, context_settings=PROGRAM_WORDS)
@_with_program
@click.option("--name", metavar="NAME", help="Of the profile; default: from PROGRAM.")
def new(base: str | None, **wanted: Any) -> None:
    """Save a profile that runs PROGRAM, a script or a recipe. Nothing is started.

    What follows PROGRAM goes to it: rankdeck new -n 2 train.py --lr 0.1.
    """
    profile, places = make_profile(Wanted(**wanted), _base(base))
    print_line(f"wrote {save_new(profile, places)}")
    print_line(f"next: rankdeck launch {shlex.quote(profile.name)}")


def _base(name: str | None) -> Profile | None:
    return None if name is None else read_profile(find_profile(name))


def save_new(profile: Profile, places: Places) -> Path:
    """Saves a new profile, with absolute paths, so that it can be launched from any folder.

    Raises:
        UsageError: there is a profile of this name.
        RankdeckError: it could not be launched.
    """
    if any(entry.name == profile.name for entry in list_profiles()):
        raise UsageError(
            f"there is already a profile {profile.name!r}", hint="choose another name: nothing is overwritten"
        )
    saved = with_absolute_paths(profile)
    LocalEngine().preview(saved, places)
    return save_profile(saved)
