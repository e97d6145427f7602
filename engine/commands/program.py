"""`rankdeck run` and `rankdeck new`: a program that is named on the command line, without a profile or as a new one."""

import difflib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from engine.client.engine import LocalEngine
from engine.commands.arguments import (
    AFTER,
    COLD,
    DETACH,
    JSON,
    PROFILE_NAME,
    RECIPE_NAME,
    SET,
    TRUST,
    permit_to_run,
    read_given,
)
from engine.commands.launching import follow_launch, launch_later
from engine.commands.output import print_line
from engine.core.arguments.argument import Argument
from engine.core.arguments.recipe import help_asked_for
from engine.core.errors import UsageError
from engine.core.plan.document.places import Places
from engine.core.plan.profile import Profile
from engine.gate import LAUNCHED, Permit
from engine.planning.profile_paths import with_absolute_paths
from engine.planning.profiles import list_profiles, save_profile
from engine.planning.programs import Wanted, arguments_of, make_profile
from engine.planning.recipes import names, recipe
from engine.planning.trust import permit_of


class ProgramName(click.ParamType[str]):
    """A script's file or a recipe's name."""

    name = "program"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [*RECIPE_NAME.shell_complete(ctx, param, incomplete), CompletionItem(incomplete, type="file")]


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
    """The words that may come next on a program's command line: values of the last argument, or arguments.

    Values are choices. For other texts, and for programs that declare nothing, the shell completes files.
    """
    before = [word for word in ctx.params["args"] or () if word != "="]  # bash takes --name=value for three words
    files = [CompletionItem(incomplete, type="file")]
    program: str = ctx.params["program"]
    known: tuple[Argument, ...] = ()  # without running the program
    if not ctx.params.get("is_module"):
        known = recipe(program).accepted if program_is_recipe(program) else arguments_of(Path(program))
    accepted = {one.flag: one for one in known if one.flag}
    last = accepted.get(before[-1]) if before else None
    if last is not None and last.type != "bool":
        if not last.choices:
            return files if last.type == "str" else []
        return [CompletionItem(word) for word in map(str, last.choices) if word.startswith(incomplete)]
    offered = [(flag, f"{one.help} (required)" if one.is_required else one.help) for flag, one in accepted.items()]
    offered += [
        (flag, f"not: {one.help}") for one in accepted.values() for flag, is_on in one.flags.items() if not is_on
    ]
    items = [
        CompletionItem(flag, help=said or None)
        for flag, said in offered
        if flag.startswith(incomplete) and flag not in {word.partition("=")[0] for word in before}
    ]
    return items if accepted and (items or program_is_recipe(program)) else files


def program_is_recipe(program: str) -> bool:
    """A file is a script, whatever recipes there are."""
    return program in names() and not Path(program).is_file()


_Command = TypeVar("_Command", bound=Callable[..., Any])

PROGRAM_WORDS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Words after the program belong to the program."""

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
    click.option("--slurm", is_flag=True, help="Submit it as a job of Slurm; --nodes is the number of its nodes."),
    click.option("--backend", "-b", metavar="NAME", help="gloo, nccl, mpi, ucc or auto; default: auto."),
    click.option("--module", "-m", "is_module", is_flag=True, help="PROGRAM is a module, as for python -m."),
    click.option("--python", metavar="PATH", help="The Python of the ranks."),
    click.option(
        "--profile", "base", type=PROFILE_NAME, help="Take what the command line does not set from this profile."
    ),
    SET,
    TRUST,
)


def _with_program(command: _Command) -> _Command:
    """Adds the options that describe a program."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(cls=_ProgramCommand, context_settings=PROGRAM_WORDS)
@_with_program
@click.option("--save", metavar="NAME", help="Also save it as a profile of this name.")
@click.option(
    "--stdin", is_flag=True, help="Pass standard input on to the only rank, for input(), breakpoint() and pdb."
)
@DETACH
@AFTER
@COLD
@JSON
@click.pass_context
def run(
    ctx: click.Context,
    /,
    *,
    base: str | None,
    trusts: bool,
    save: str | None,
    stdin: bool,
    detach: bool,
    after: str | None,
    cold: bool,
    as_json: bool,
    **wanted: Any,
) -> None:
    """Run PROGRAM, a script or a recipe, without a profile.

    Words after PROGRAM are its arguments: rankdeck run -n 2 train.py --lr 0.1. With --help, a recipe describes its arguments,
    and nothing is started. If a rank fails, the others are stopped (launch.on_failure = "stop"), unless --profile or --set says
    otherwise. The exit status, Ctrl-C and the rest are as for rankdeck launch.
    """
    _help_with_recipe(ctx)
    if stdin and (detach or after is not None or wanted["ranks"] != 1 or wanted["nodes"] is not None):
        hint = "rankdeck run -n 1 --stdin, without --detach, --after and --nodes"
        raise UsageError("--stdin is for one rank that is followed", hint=hint)
    on_failure = "stop" if base is None else None  # nobody has chosen to look after it
    profile, places = make_profile(Wanted(name=save, on_failure=on_failure, **wanted), _base(base, trusts=trusts))
    if save is not None:
        save_new(profile, places, LAUNCHED, "--save")
    if after is not None:
        ctx.exit(launch_later(profile, places, after, cold=cold, as_json=as_json))
    ctx.exit(follow_launch(profile, places, detach=detach, cold=cold, as_json=as_json, stdin=stdin))


@click.command(cls=_ProgramCommand, context_settings=PROGRAM_WORDS)
@_with_program
@click.option("--name", metavar="NAME", help="Of the profile; default: from PROGRAM.")
@click.pass_context
def new(ctx: click.Context, /, *, base: str | None, trusts: bool, **wanted: Any) -> None:
    """Save a profile that runs PROGRAM, a script or a recipe. Nothing is started.

    Words after PROGRAM are its arguments: rankdeck new -n 2 train.py --lr 0.1. With --help, a recipe describes its arguments.
    """
    _help_with_recipe(ctx)
    profile, places = make_profile(Wanted(**wanted), _base(base, trusts=trusts))
    print_line(f"wrote {save_new(profile, places, permit_of(None))}")
    if profile.recipe.script is not None:
        _show_arguments(Path(wanted["program"]), profile.recipe.args)
    print_line(f"next: rankdeck launch {shlex.quote(profile.name)}")


def _help_with_recipe(ctx: click.Context) -> None:
    """Prints the help of a recipe and ends the command, if its arguments ask for it."""
    program = ctx.params["program"]
    if ctx.params["is_module"] or not program_is_recipe(program):
        return
    command = f"{ctx.command_path} {program}"
    if said := help_asked_for(recipe(program), ctx.params["args"], command):
        click.echo(said)
        click.echo(f"Options such as -n come before {program}; {ctx.command_path} --help lists them.")
        ctx.exit()


def _show_arguments(script: Path, words: Sequence[str]) -> None:
    """Names a word that the script seems not to take, and the arguments that the profile could set."""
    declared = arguments_of(script)
    known = [flag for one in declared for flag in (one.flags or [one.flag.rstrip("=") or one.name.upper()])]
    for word in words:
        near = difflib.get_close_matches(word.partition("=")[0], known, 1, 0.8)
        if word.startswith("--") and near and near[0] != word.partition("=")[0]:
            print_line(f"{script.name} declares no {word.partition('=')[0]}; did you mean {near[0]}?", err=True)
    if declared:
        print_line(f"{script.name} takes: {' '.join(known)}")


def _base(name: str | None, *, trusts: bool) -> Profile | None:
    """The profile of --profile. Its programs become those of the new one, so it must be trusted."""
    if name is None:
        return None
    given = read_given(name)
    permit_to_run(given, trusts=trusts)
    return given.profile


def save_new(profile: Profile, places: Places, permit: Permit, option: str = "--name") -> Path:
    """Saves a new profile, with absolute paths, so that it can be launched from any folder. `permit`: what may start to find out whether it
    could be launched. `option`: the option of the command line that gives the profile another name. Raises UsageError: there is a profile
    of this name; RankdeckError: it could not be launched."""
    if any(entry.name == profile.name for entry in list_profiles()):
        hint = f"choose another name with {option}: nothing is overwritten"
        raise UsageError(f"there is already a profile {profile.name!r}", hint=hint)
    saved = with_absolute_paths(profile)
    LocalEngine().preview(saved, permit, places)
    return save_profile(saved)
