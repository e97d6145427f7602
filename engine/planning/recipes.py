"""The built-in training scripts, as their sources describe them. They are read, not run: they import torch."""

from functools import cache
from pathlib import Path

from engine.backends import BACKENDS
from engine.core.arguments.argument import RecipeInfo
from engine.core.arguments.recipe import problem_with, read_recipe
from engine.core.errors import CheckError, UsageError
from engine.core.plan.document.checks import Choices
from engine.core.plan.document.places import Places
from engine.core.plan.environment import AUTO, backends_in
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile
from engine.core.plan.rank import recipe_file
from engine.core.words import suggestion
from engine.installed import LIBRARY

FOLDER = LIBRARY / "recipes"


@cache
def names() -> tuple[str, ...]:
    """The name of every recipe: `linear-hooks` for `linear_hooks.py`. Reads no script."""
    return tuple(sorted(path.stem.replace("_", "-") for path in FOLDER.glob("[!_]*.py")))


def choices() -> Choices:
    """The values that `backend.name`, `backend.fallback` and `recipe.name` may have."""
    return {
        ("backend", "name"): (*BACKENDS, AUTO),
        ("backend", "fallback"): tuple(BACKENDS),
        ("recipe", "name"): names(),
    }


def recipes() -> dict[str, RecipeInfo]:
    """Every recipe by name."""
    return {name: recipe(name) for name in names()}


@cache
def recipe(name: str) -> RecipeInfo:
    """A recipe. `name`: one of `names()`."""
    return read_recipe(name, script_of(name).read_text(encoding="utf-8"))


def find_recipe(word: str) -> RecipeInfo:
    """The recipe of a name. Raises UsageError: there is none; the hint has the nearest name."""
    if word in names():
        return recipe(word)
    raise UsageError(f"there is no recipe {word!r}", hint=suggestion(word, names(), "rankdeck recipes lists them"))


def script_of(name: str) -> Path:
    """The script of a recipe."""
    return FOLDER / recipe_file(name)


def check_arguments(profile: Profile, places: Places) -> None:
    """Checks the arguments of a profile whose program is a recipe. `profile`: names a recipe that exists, or another program. Raises ProfileError:
    the recipe would refuse them."""
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
        hint = suggestion(problem.word.partition("=")[0], known, f"{chosen.name} takes: {' '.join(known)}")
    raise places.error(("recipe", "args"), problem.reason, hint=hint)


def check_backend(profile: Profile, backend: str) -> None:
    """Raises CheckError if the recipe of a profile can't run on a backend."""
    if profile.recipe.name is None:
        return
    chosen = recipe(profile.recipe.name)
    for name in backends_in(backend):
        if why := chosen.refused.get(name):
            others = " or ".join(other for other in BACKENDS if other not in chosen.refused)
            hint = f"set backend.name to {others}"
            raise CheckError(f"the recipe {chosen.name} can't run on {name}: {why}", hint=hint)


def check_ranks(plan: LaunchPlan) -> None:
    """Raises CheckError if a plan has too few or too many ranks for its recipe."""
    if plan.program.kind != "recipe":
        return
    chosen, ranks = recipe(plan.program.target), plan.world_size
    fewest, most = chosen.ranks
    if not (fewest or 1) <= ranks <= (most or ranks):
        limit = f"{fewest} ranks or more" if ranks < (fewest or 1) else f"{most} ranks or fewer"
        hint = "set layout.ranks_per_node or layout.nodes"
        raise CheckError(f"the recipe {chosen.name} needs {limit}, not {ranks}", hint=hint)
