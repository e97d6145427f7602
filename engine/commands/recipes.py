"""`rankdeck recipes`: lists the recipes, prints a script, and begins a user's own script from one."""

import contextlib
import re
import shlex
from pathlib import Path

import click
import msgspec

from engine.commands.arguments import JSON, RECIPE_NAME
from engine.commands.output import print_json, print_line, print_table
from engine.core.arguments.argument import RecipeInfo
from engine.core.errors import RankdeckError, UsageError
from engine.core.plan.document.reading import below, profile_from_data
from engine.planning.profiles import to_toml
from engine.planning.recipes import find_recipe, script_of
from engine.planning.recipes import recipes as all_recipes
from engine.planning.site import read_site

RANKS = 4  # ranks of a new profile, if the recipe takes as many

NAME = click.argument("name", type=RECIPE_NAME)


@click.group(invoke_without_command=True)
@JSON
@click.pass_context
def recipes(ctx: click.Context, *, as_json: bool) -> None:
    """List the recipes: training scripts to run, to read and to begin with.

    A profile runs one with recipe.name. `rankdeck recipes show NAME` prints a script, and `rankdeck recipes copy NAME train.py`
    begins a script of your own from it.
    """
    if ctx.invoked_subcommand is not None:
        return
    found = all_recipes()
    if as_json:
        print_json(list(msgspec.to_builtins(found).values()))
        return
    print_table([("NAME", "WHAT IT SHOWS"), *((name, recipe.summary) for name, recipe in found.items())])


@recipes.command()
@NAME
def show(name: str) -> None:
    """Print the script of a recipe, which begins with what it teaches."""
    click.echo(script_of(find_recipe(name).name).read_text(encoding="utf-8"), nl=False)


@recipes.command()
@NAME
@click.argument("script", type=click.Path(path_type=Path))
def copy(name: str, script: Path) -> None:
    """Begin your own SCRIPT, such as train.py, from a recipe. A profile that runs it is written beside it.

    Nothing is overwritten: if one of the two files is there, neither is written.
    """
    recipe = find_recipe(name)
    if script.suffix != ".py":
        raise UsageError(f"{script} is not the name of a Python file", hint=f"such as: {script.stem or 'train'}.py")
    if not str(script).isprintable():  # a profile is UTF-8, and what is printed next must be a command
        raise UsageError(f"{str(script)!a} has characters that can't be printed", hint="such as: train.py")
    profile = script.with_suffix(".toml")
    if not script.parent.is_dir():
        raise UsageError(f"there is no folder {script.parent}", hint=f"mkdir -p {shlex.quote(str(script.parent))}")
    _write({script: script_of(recipe.name).read_text(encoding="utf-8"), profile: _profile(recipe, script)})
    print_line(f"wrote {_word(script)} and {_word(profile)}")
    print_line(f"next: rankdeck launch {_word(profile)}")


def _profile(recipe: RecipeInfo, script: Path) -> str:
    """A profile that runs a copy of a recipe, as TOML."""
    fewest, most = recipe.ranks
    name = re.sub(r"[^A-Za-z0-9._-]", "-", script.stem).lstrip("._-")[:64] or recipe.name
    data = {
        "schema": 1,
        "name": name,
        "description": f"begun from the recipe {recipe.name}",
        "backend": {"name": "auto" if not recipe.refused else "gloo"},
        "layout": {"nodes": "localhost", "ranks_per_node": min(max(RANKS, fewest or 1), most or RANKS)},
        "recipe": {"script": str(script)},
    }
    return to_toml(profile_from_data(below(data, read_site().site.defaults), "the new profile"))


def _write(texts: dict[Path, str]) -> None:
    """Writes new files, all of them or none."""
    with contextlib.ExitStack() as undo:
        for path, text in texts.items():
            try:
                file = path.open("x", encoding="utf-8")
                undo.callback(path.unlink)
                with file:
                    file.write(text)
            except FileExistsError:
                raise UsageError(f"{path} already exists", hint="choose another name: nothing is overwritten") from None
            except OSError as error:
                hint = "nothing was written; choose another folder"
                raise RankdeckError(f"{path} can't be written: {error.strerror}", hint=hint) from None
        undo.pop_all()


def _word(path: Path) -> str:
    """A path as a word of a shell; never an option, and always a path for `rankdeck launch`."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith(("-", "~")) else text)
