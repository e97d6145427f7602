"""Recipes in the app: their arguments as lines of the form, what each shows and takes, and the script."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from engine.core.arguments.argument import Argument, RecipeInfo
from engine.core.errors import CheckError, ProfileError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile
from engine.gate import Permit
from engine.planning.recipes import find_recipe, names
from tests.support import entries, from_table, parse_profile
from tests.tui.fake_engine import RECIPES, FakeEngine, entry, profile
from tests.tui.seen import after, showing, until, until_seen
from tui.app import RankdeckApp
from tui.data.form import errors_of, profile_of, values_of
from tui.data.form_lines import ARGUMENT, Field, fields, own_script
from tui.screens.edit import EditScreen
from tui.screens.script import ScriptScreen
from tui.text.recipes import recipes_text, script_text
from tui.widgets.form_row import FormRow

SHAPED = RecipeInfo(
    name="shaped",
    summary="Shows every kind of parameter.",
    lesson="What it teaches,\nin two lines.\n\nAnd what goes wrong.\n\n    one\n    two",
    arguments=(
        Argument(
            name="steps", type="int", default=200, help="steps in all", low=1, unit="steps", presets={"small": 20}
        ),
        Argument(name="lr", type="float", default=0.1, help="learning rate", low=0.0, high=1.0),
        Argument(name="data", type="str", default="digits", help="what it learns", choices=("digits", "noise")),
        Argument(name="sync-batchnorm", type="bool", default=False, help="all ranks", presets={"small": True}),
        Argument(name="stages", type="int", default=2, help="cuts", choices=(2, 4)),
    ),
    refused={"mpi": "it has its own transport"},
    ranks=(2, None),
)
ALL = (*RECIPES, SHAPED)


def shaped(*args: str) -> Profile:
    return profile("mine", recipe="shaped", more=f"args = {list(args)}\n")


def lines(*args: str) -> dict[str, Field]:
    """The lines for the arguments, by name."""
    found = fields(values_of(shaped(*args), ALL), ALL, ())
    return {one.id.removeprefix(ARGUMENT): one for one in found if one.id.startswith(ARGUMENT)}


# --- the form without a screen ---------------------------------------------------------------------------------------


def test_a_line_says_range_unit_and_default():
    found = lines()
    assert list(found) == ["preset", "steps", "lr", "data", "sync-batchnorm", "stages"]
    assert found["steps"].help == "steps in all (a whole number of 1 or more; steps)"
    assert found["steps"].placeholder == "200 steps"
    assert found["lr"].help == "learning rate (a number from 0 to 1)"
    assert [value for value, _ in found["data"].choices] == ["", "digits", "noise"]
    assert [value for value, _ in found["stages"].choices] == ["", "2", "4"]
    assert found["sync-batchnorm"].choices == (("", "no"), ("no", ""), ("yes", ""))
    assert found["preset"].choices == (("", "the defaults"), ("small", "steps 20, sync-batchnorm True"))


def test_a_preset_changes_what_stands_in_empty_lines():
    found = lines("--preset", "small")
    assert found["steps"].placeholder == "20 steps"
    assert dict(found["sync-batchnorm"].choices)[""] == "yes"
    assert found["lr"].placeholder == "0.1"


@from_table
def test_arguments_go_through_the_form_unchanged(args: tuple[str, ...]):
    before = shaped(*args)
    assert profile_of(values_of(before, ALL), before, ALL) == before


@from_table
def test_what_is_chosen_becomes_arguments(values: dict[str, str], args: list[str]):
    said = {f"{ARGUMENT}{name}": value for name, value in values.items()}
    assert profile_of({**values_of(shaped(), ALL), **said}, None, ALL).recipe.args == tuple(args)


@from_table
def test_a_value_out_of_range_is_refused_at_its_line(name: str, value: str, reason: str):
    values: dict[str, Any] = {**values_of(shaped(), ALL), f"{ARGUMENT}{name}": value}
    (error,) = errors_of(values, None, ALL)
    assert isinstance(error, ProfileError)
    assert (error.key, error.reason) == (f"{ARGUMENT}{name}", reason)


@pytest.mark.parametrize("name", names())
def test_every_argument_of_a_recipe_has_a_line_with_what_it_means(name: str):
    found = {one.id: one for one in fields({"recipe.kind": name}, [find_recipe(name)], ())}
    for argument in find_recipe(name).accepted:
        line = found[f"{ARGUMENT}{argument.name}"]
        assert line.label == argument.name
        assert line.help.startswith(argument.help)
        assert line.choices or argument.takes in line.help


# --- what a recipe shows and takes -----------------------------------------------------------------------------------


def test_a_recipe_says_what_it_shows_and_takes_and_where_it_can_not_run():
    text = " ".join(recipes_text(ALL, "shaped", 60, ascii=True).plain.split())
    for words in entries("tui/recipes", "a_recipe_says_what_it_shows_and_takes_and_where_it_can_not_run"):
        assert words in text


@pytest.mark.parametrize("width", [20, 78, 200])
@pytest.mark.parametrize("ascii", [True, False])
def test_a_script_is_coloured_and_cut_lines_are_marked(width: int, ascii: bool):
    source = f'def main() -> None:\n    print("{"x" * 100}")  # 日本\n\n\n\x1b[2Jmain()\n'
    text = script_text(source, width, ascii=ascii)
    seen = text.split("\n", allow_blank=True)
    assert max(line.cell_length for line in seen) <= width
    assert "\x1b" not in text.plain
    sign = "> " if ascii else "↪ "
    assert (f"\n{sign}" in text.plain) == (width < 120)
    joined = text.plain.replace(f"\n{sign}", "")
    assert joined.startswith(f'def main() -> None:\n    print("{"x" * 100}")  # 日本\n\n\n')
    assert {str(span.style) for span in text.spans if text.plain[span.start : span.end] == "def"} - {"$text"}


# --- the screen ------------------------------------------------------------------------------------------------------


class Engine(FakeEngine):
    """Has a recipe with every kind of parameter."""

    def recipes(self) -> list[RecipeInfo]:
        return list(ALL)

    def preview(self, profile: Profile, permit: Permit) -> LaunchPlan:
        if profile.recipe.args == ():
            raise CheckError("the recipe shaped needs 9 ranks")
        return super().preview(profile, permit)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_arguments_are_chosen_and_the_script_is_read_in_the_form(tmp_path: Path, size: tuple[int, int]):
    engine = Engine(tmp_path, [entry(shaped(), tmp_path)])
    app = RankdeckApp(engine)
    async with showing(app, "Plan: mine", size=size) as pilot:
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, EditScreen) and app.focused is not None, "the form")

        def go_to(key: str) -> None:
            next(row.line for row in app.screen.query(FormRow) if row.field.id == key).focus()

        go_to("recipe.kind")
        await until_seen(pilot, "Shows every kind of parameter.", "can't run on mpi: it has its own", "F6: its script")
        await until_seen(pilot, "the recipe shaped needs 9 ranks")
        go_to(f"{ARGUMENT}preset")
        await until_seen(pilot, "● default", "○ small")
        await after(pilot, "right", "(20 steps)", "● small", "small: steps 20, sync-batchnorm True")
        await after(pilot, ("down", *"0"), "'0' is not a whole number of 1 or more")
        await after(pilot, "backspace 5 down down right down right", "● no", "all ranks (left")
        await after(pilot, "f6", on=ScriptScreen)
        await until_seen(pilot, "The script of shaped", "import os", "recipes copy shaped train.py", "↪ ")
        await after(pilot, "escape", on=EditScreen)
        await pilot.press("f5")
        await until(pilot, lambda: bool(engine.launched), "the launch")
    args = ("--preset", "small", "--steps", "5", "--data", "digits", "--no-sync-batchnorm")
    assert engine.launched[0].recipe.args == args


# --- the arguments of a script ---------------------------------------------------------------------------------------

DECLARED = (
    Argument(name="lr", type="float", default=0.1, help="learning rate", word="--lr"),
    Argument(name="opt", type="str", default="sgd", help="", word="--opt", choices=("sgd", "adam")),
    Argument(name="amp", type="bool", default=False, help="mixed precision", word="--amp", off=""),
    Argument(name="optim.width", type="int", default=8, help="", word="optim.width="),
    Argument(name="gradient_accumulation_steps", type="int", default="", help="", word="--gradient_accumulation_steps"),
    Argument(name="steps", type="int", default="", help="", is_required=True),
    Argument(name="model", type="str", default="", help="", choices=("cnn", "mlp"), is_required=True),
)


@from_table
def test_words_of_a_script_are_in_its_lines_and_come_back(args: list[str], values: dict[str, str], rest: str):
    known = own_script(RECIPES, DECLARED)
    base = parse_profile(f"schema = 1\nname = 'x'\n[recipe]\nscript = 'train.py'\nargs = {args}\n", file="x.toml")
    shown = values_of(base, known)
    assert {key.removeprefix(ARGUMENT): value for key, value in shown.items() if key.startswith(ARGUMENT)} == values
    assert shown["recipe.args"] == rest
    assert profile_of(shown, base, known).recipe.args == tuple(args)
    shown[f"{ARGUMENT}lr"], shown[f"{ARGUMENT}optim.width"] = "0.5", "2"
    words = profile_of(shown, base, known).recipe.args
    assert words[:2] == ("--lr", "0.5")
    assert "optim.width=2" in words
    assert {one.name for one in own_script(known, ())} == {one.name for one in RECIPES}


def test_lines_of_a_script_fit_and_offer_what_it_takes():
    known = own_script(RECIPES, DECLARED)
    found = {one.id.removeprefix(ARGUMENT): one for one in fields({"recipe.kind": "script"}, known, ())}
    assert found["amp"].choices == (("", "no"), ("yes", ""))
    assert [value for value, _ in found["opt"].choices] == ["", "sgd", "adam"]
    assert found["gradient_accumulation_steps"].label == "gradient_accumu…"
    assert all(len(one.label) <= 16 for one in found.values())
    assert found["steps"].placeholder == "required"
    assert found["model"].choices[0] == ("", "required")
    assert [value for value, _ in found["recipe.kind"].choices].count("script") == 1


SEVERAL = (
    Argument(name="sizes", type="int", default="64 64", help="", many="words"),
    Argument(name="shape", type="float", default="", help="", many="words", count=2),
    Argument(name="tag", type="str", default="", help="", many="again", choices=("a", "b c")),
    Argument(name="betas", type="float", default="", help="", word="betas=", many="list"),
    *DECLARED[:1],
)


@from_table
def test_several_values_of_an_argument_are_one_line_and_come_back(args: list[str], values: dict[str, str], rest: str):
    known = own_script(RECIPES, SEVERAL)
    base = parse_profile(f"schema = 1\nname = 'x'\n[recipe]\nscript = 'train.py'\nargs = {args}\n", file="x.toml")
    shown = values_of(base, known)
    assert {key.removeprefix(ARGUMENT): value for key, value in shown.items() if key.startswith(ARGUMENT)} == values
    assert shown["recipe.args"] == rest
    assert profile_of(shown, base, known).recipe.args == tuple(args)


PLACED = (
    Argument(name="data", type="str", default="", help="a folder", word="data", is_positional=True),
    Argument(name="out", type="str", default="runs", help="", word="out", is_positional=True, is_optional=True),
    Argument(name="resume", type="str", default="", help="", word="--resume", alone="auto"),
    Argument(name="sizes", type="int", default="", help="", word="--sizes", many="words"),
    Argument(name="lr", type="float", default=0.1, help="", word="--lr", aliases=("-l",)),
    Argument(name="amp", type="bool", default=False, help="", word="--amp", off="", aliases=("-a",)),
)


@from_table
def test_words_without_a_flag_are_in_the_lines_of_positional_arguments(
    args: str, values: dict[str, str], rest: str, changed: str | None
):
    known = own_script(RECIPES, PLACED)
    words = args.split()
    base = parse_profile(f"schema = 1\nname = 'x'\n[recipe]\nscript = 'train.py'\nargs = {words}\n", file="x.toml")
    shown = values_of(base, known)
    assert {key.removeprefix(ARGUMENT): value for key, value in shown.items() if key.startswith(ARGUMENT)} == values
    assert shown["recipe.args"] == rest
    if changed is None:
        return
    assert profile_of(shown, base, known).recipe.args == tuple(words)
    shown[f"{ARGUMENT}lr"] = "9"
    assert profile_of(shown, base, known).recipe.args == tuple(changed.split())


def test_a_positional_argument_needs_those_before_it():
    known = own_script(RECIPES, PLACED)
    shown = {"name": "x", "recipe.kind": "script", "recipe.script": "t.py", f"{ARGUMENT}out": "runs"}
    assert [(error.key, error.reason) for error in errors_of(shown, None, known)] == [
        (f"{ARGUMENT}data", "needs a value, because an argument after it has one")
    ]
    shown |= {f"{ARGUMENT}data": "my data", f"{ARGUMENT}out": "-o"}
    assert [(error.key, error.reason) for error in errors_of(shown, None, known)] == [
        (f"{ARGUMENT}out", "'-o' would be read as an option")
    ]
    shown |= {f"{ARGUMENT}out": "", f"{ARGUMENT}resume": "auto", "recipe.args": "--more 1 -- x"}
    assert profile_of(shown, None, known).recipe.args == ("my data", "--more", "1", "--resume", "--", "x")


def test_several_values_take_no_word_that_follows_them():
    known = own_script(RECIPES, SEVERAL)
    shown = {
        "name": "x",
        "recipe.kind": "script",
        "recipe.script": "t.py",
        "recipe.args": "data --other 1 -- more",
        f"{ARGUMENT}sizes": "1 2",
        f"{ARGUMENT}lr": "0.5",
    }
    words = "--lr 0.5 data --other 1 --sizes 1 2 -- more"
    assert profile_of(shown, None, known).recipe.args == tuple(words.split())
    shown[f"{ARGUMENT}sizes"] = "1 two"
    shown[f"{ARGUMENT}shape"] = "1"
    assert {(error.key, error.reason) for error in errors_of(shown, None, known)} == {
        (f"{ARGUMENT}sizes", "'two' is not a whole number"),
        (f"{ARGUMENT}shape", "'1' is not 2 values, each a number"),
    }
    found = {one.id.removeprefix(ARGUMENT): one for one in fields(shown, known, ())}
    assert found["sizes"].placeholder == "64 64"
    assert found["sizes"].help == " (one or more values, each a whole number)"
    assert found["tag"].choices == ()


@contextlib.asynccontextmanager
async def form_of(script: str, folder: Path) -> AsyncIterator[tuple[FakeEngine, Pilot[Any], EditScreen]]:
    """The form of a profile with a script. `train.py` is one that declares its arguments."""
    engine = FakeEngine(folder)
    engine.declared["train.py"] = DECLARED
    async with RankdeckApp(engine).run_test(size=(100, 40)) as pilot:
        own = parse_profile(f"schema = 1\nname = 'x'\n[recipe]\nscript = '{script}'\n", file="x.toml")
        screen = EditScreen(entry(own, folder))
        pilot.app.push_screen(screen)
        yield engine, pilot, screen


async def test_a_script_has_a_line_for_each_argument_as_soon_as_it_is_named(tmp_path: Path):
    async with form_of("none.py", tmp_path) as (engine, pilot, screen):

        def rows() -> dict[str, FormRow]:
            return {row.field.id: row for row in screen.query(FormRow)}

        await until(pilot, lambda: "recipe.script" in rows())
        rows()["recipe.script"].line.value = "train.py"
        await until(pilot, lambda: f"{ARGUMENT}lr" in rows())
        rows()[f"{ARGUMENT}lr"].line.value = "fast"
        await until_seen(pilot, "'fast' is not a number")
        rows()["recipe.script"].line.value = "other.py"
        await until(pilot, lambda: f"{ARGUMENT}lr" not in rows())
        rows()["recipe.script"].line.value = "train.py"
        await until(pilot, lambda: f"{ARGUMENT}lr" in rows())
        rows()[f"{ARGUMENT}lr"].line.value = "0.5"
        await pilot.press("f5")
        await until(pilot, lambda: bool(engine.launched))
        assert engine.launched[0].recipe.args == ("--lr", "0.5")


async def test_lines_answer_although_the_work_that_replaces_them_is_cancelled(tmp_path: Path):
    async with form_of("train.py", tmp_path) as (_, pilot, screen):
        await until(pilot, lambda: f"{ARGUMENT}lr" in {row.field.id for row in screen.form.rows})
        for script in ("other.py", "train.py"):
            await screen.form.read_script(screen.form.values | {"recipe.script": script})
            work = asyncio.create_task(screen.form.build())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            work.cancel()
            await pilot.pause()
        await screen.form.build()
        assert [row.field.id for row in screen.form.rows].count(f"{ARGUMENT}lr") == 1
        await pilot.pause()
