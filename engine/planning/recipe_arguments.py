"""Reads the command line of a recipe as its script does, without running it: refuses what that would refuse, and has the same help."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from engine.backends import BACKENDS
from engine.core.catalogue import Argument, RecipeInfo
from engine.core.errors import CheckError
from engine.core.plan.backend_names import backends_in
from engine.core.plan.key_places import Places
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile
from engine.planning.recipes import recipe


class Problem(NamedTuple):
    """Why a script refuses its command line. `argument`: the one whose value is wrong; None: `word` is no argument."""

    argument: Argument | None
    reason: str
    word: str = ""


class _HelpAskedFor(Exception):
    """The script prints its help and does not look at the words after it."""


class _Help(argparse.Action):
    def __call__(self, *_: Any) -> None:
        raise _HelpAskedFor


def problem_with(recipe: RecipeInfo, words: Sequence[str]) -> Problem | None:
    """What is wrong with a command line, in the words of the script; None: nothing."""
    try:
        _, rest = _parser(recipe).parse_known_args(words)
    except _HelpAskedFor:
        return None
    except argparse.ArgumentError as error:
        name = error.argument_name or ""
        flag = name.split("/")[0]
        return Problem(next((one for one in recipe.accepted if one.flag == flag), None), f"{name}: {error.message}")
    return Problem(None, f"there is no argument {rest[0]!r}", rest[0]) if rest else None


def help_asked_for(recipe: RecipeInfo, words: Sequence[str], command: str) -> str:
    """The help that a script prints for a command line with `--help`; empty: it would not print it.

    Args:
        recipe: whose script it is.
        words: of the command line.
        command: what the user has typed before them, for the line of usage.
    """
    parser = _parser(recipe, command)
    try:
        parser.parse_known_args(words)
    except _HelpAskedFor:
        return parser.format_help()
    except argparse.ArgumentError:
        return ""
    return ""


def _parser(recipe: RecipeInfo, command: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        command,
        description=f"{recipe.summary}\n\n{recipe.lesson}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("-h", "--help", action=_Help, nargs=0, help="show this help message and exit")
    for one in recipe.accepted:
        said = one.described.replace("%", "%%")
        if one.type == "bool":
            parser.add_argument(one.flag, action=argparse.BooleanOptionalAction, help=said)
        else:
            parser.add_argument(one.flag, type=_reader(one), metavar=one.type, help=said)
    return parser


def _reader(argument: Argument) -> Callable[[str], str]:
    def read(word: str) -> str:
        if problem := argument.problem(word):
            raise argparse.ArgumentTypeError(problem)
        return word

    return read


def check_arguments(profile: Profile, places: Places) -> None:
    """Checks the arguments of a profile whose program is a recipe.

    Args:
        profile: names a recipe that exists, or another program.
        places: of its keys.

    Raises:
        ProfileError: the recipe would refuse them.
    """
    if profile.recipe.name is None:
        return
    chosen = recipe(profile.recipe.name)
    problem = problem_with(chosen, profile.recipe.args)
    if problem is None:
        return
    wrong = problem.argument
    if wrong is not None:
        hint = f"--{wrong.name}: {wrong.help}" + (f" (default: {wrong.default})" if wrong.default != "" else "")
    elif problem.word == "--":
        hint = "leave it out: all words of recipe.args, or after the program's name, are arguments of the recipe"
    else:
        known = [f"--{argument.name}" for argument in chosen.accepted]
        near = difflib.get_close_matches(problem.word.partition("=")[0], known, 1)
        hint = f"did you mean {near[0]}?" if near else f"{chosen.name} takes: {' '.join(known)}"
    raise places.error(("recipe", "args"), problem.reason, hint=hint)


def check_backend(profile: Profile, backend: str) -> None:
    """Raises CheckError if the recipe of a profile can't run on a backend."""
    if profile.recipe.name is None:
        return
    chosen = recipe(profile.recipe.name)
    for name in backends_in(backend):
        if why := chosen.refused.get(name):
            others = " or ".join(other for other in BACKENDS if other not in chosen.refused)
            raise CheckError(
                f"the recipe {chosen.name} can't run on {name}: {why}", hint=f"set backend.name to {others}"
            )


def check_ranks(plan: LaunchPlan) -> None:
    """Raises CheckError if a plan has too few or too many ranks for its recipe."""
    if plan.program.kind != "recipe":
        return
    chosen, ranks = recipe(plan.program.target), plan.world_size
    fewest, most = chosen.ranks
    if not (fewest or 1) <= ranks <= (most or ranks):
        limit = f"{fewest} ranks or more" if ranks < (fewest or 1) else f"{most} ranks or fewer"
        raise CheckError(
            f"the recipe {chosen.name} needs {limit}, not {ranks}", hint="set layout.ranks_per_node or layout.nodes"
        )
