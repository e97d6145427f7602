"""The form: what it shows of a profile, what it makes of what is typed, and that nothing is lost."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Input

from engine.core.arguments.argument import Argument
from engine.core.errors import ProfileError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile, to_toml_data
from tests.support import entries, rows
from tests.tui.fake_engine import BACKENDS, RECIPES, FakeEngine, entry, profile
from tests.tui.seen import after, showing, text_of, until, until_seen
from tui.app import RankdeckApp
from tui.data.form import errors_of, free_name, line_of_error, profile_of, values_of
from tui.data.form_lines import ARGUMENT, BACKEND, fields
from tui.screens.confirm import AskScreen
from tui.screens.edit import EditScreen
from tui.screens.home import HomeScreen
from tui.screens.run import RunScreen
from tui.theme import CSS
from tui.widgets.choice import Choice
from tui.widgets.form_row import Form, FormRow

# --- the form without a screen ---------------------------------------------------------------------------------------

WHOLE = entries("tui/edit", "whole")


def test_a_profile_goes_through_the_form_unchanged():
    before = profile("whole", more=WHOLE)
    assert profile_of(values_of(before, RECIPES), before, RECIPES) == before
    automatic = profile("whole", more='[launch]\npreload = "auto"\n')
    assert profile_of(values_of(automatic, RECIPES), automatic, RECIPES) == automatic


def test_a_start_from_a_warm_process_is_the_default_and_only_the_other_choice_is_saved():
    cold = profile("p", more="[launch]\nwarm = false\n")
    assert values_of(cold, RECIPES)["launch.warm"] == "no"
    assert profile_of(values_of(cold, RECIPES), cold, RECIPES) == cold
    warm = profile_of({**values_of(cold, RECIPES), "launch.warm": "yes"}, cold, RECIPES)
    assert warm.launch.warm
    assert "launch" not in to_toml_data(warm)
    new = {**values_of(None, RECIPES), "name": "p"}
    assert new["launch.warm"] == "yes"
    assert "launch" not in to_toml_data(profile_of(new, None, RECIPES))
    assert to_toml_data(profile_of({**new, "launch.warm": "no"}, None, RECIPES))["launch"] == {"warm": False}


def test_a_new_profile_has_the_defaults_of_the_site_where_the_form_says_nothing():
    values = values_of(None, RECIPES) | {"name": "new", "launch.on_failure": "hold"}
    defaults = {"launch": {"setup": "module load x", "on_failure": "stop"}, "layout": {"slurm": {"account": "lab"}}}
    profile = profile_of(values, None, RECIPES, defaults)
    assert (profile.launch.setup, profile.launch.on_failure, profile.layout.slurm) == ("module load x", "hold", None)


def test_a_new_run_trains_whatever_else_there_is():
    assert values_of(None, RECIPES)["recipe.kind"] == "gpt"
    assert values_of(None, RECIPES[::-1])["recipe.kind"] == "gpt"
    assert values_of(None, ())["recipe.kind"] == "script"


CLEAR = 'args = ["a b", "--lr=0.01", "--steps", "1000", "--verbose"]' + WHOLE.partition("]")[2]
"""As `WHOLE`, but no word stands behind an option that the recipe does not declare."""


def test_declared_arguments_have_lines_of_their_own_and_all_other_words_stay():
    values = values_of(profile("clear", more=CLEAR), RECIPES)
    assert values[f"{ARGUMENT}steps"] == "1000"
    assert values[f"{ARGUMENT}lr"] == "0.01"
    assert values["recipe.args"] == "'a b' --verbose"


def test_words_stay_together_where_one_could_become_the_value_of_an_option():
    values = values_of(profile("whole", more=WHOLE), RECIPES)
    assert values["recipe.args"] == "--verbose --lr=0.01 --steps 1000 'a b'"


def test_a_changed_argument_keeps_what_the_form_has_no_line_for():
    before = profile("clear", more=CLEAR)
    after = profile_of({**values_of(before, RECIPES), f"{ARGUMENT}steps": "7"}, before, RECIPES)
    assert after.recipe.args == ("--steps", "7", "--lr", "0.01", "a b", "--verbose")
    assert (after.env, after.metrics, after.launch) == (before.env, before.metrics, before.launch)


def test_what_takes_over_for_a_backend_is_a_line_of_the_form():
    before = profile("p", backend='nccl"\nfallback = ["cpu:gloo,cuda:nccl", "gloo"]\n#"')
    values = values_of(before, RECIPES)
    assert values["backend.fallback"] == "cpu:gloo,cuda:nccl gloo"
    assert profile_of(values, before, RECIPES) == before
    assert profile_of({**values, "backend.fallback": " "}, before, RECIPES).backend.fallback == ()
    with pytest.raises(ProfileError, match="gloo would be tried twice") as caught:
        profile_of({**values, BACKEND: "gloo"}, before, RECIPES)
    assert line_of_error(caught.value, list(values)) == "backend.fallback"


def test_variables_are_words_of_a_line_and_what_can_not_be_shown_stays():
    more = '[env]\nA = "1 2"\nHF_TOKEN = "swordfish"\nTEXT = "a\\nb"\n'
    before = profile("p", more=more)
    values = values_of(before, RECIPES)
    assert values["env"] == "'A=1 2'"
    assert profile_of(values, before, RECIPES) == before
    after = profile_of({**values, "env": "B=x=y 'C=3 4'", "backend.env": "NCCL_DEBUG=INFO"}, before, RECIPES)
    assert after.env == {"HF_TOKEN": "swordfish", "TEXT": "a\nb", "B": "x=y", "C": "3 4"}
    assert after.backend.env == {"NCCL_DEBUG": "INFO"}
    assert list(profile_of({**values, "env": ""}, before, RECIPES).env) == ["HF_TOKEN", "TEXT"]


@pytest.mark.parametrize("text", ["DEBUG", "=1", "1A=2", "A='", "A-B=1"])
@pytest.mark.parametrize("key", ["env", "backend.env"])
def test_what_is_no_variable_is_said_at_its_line(key, text):
    errors = errors_of({**values_of(None, RECIPES), "name": "p", key: text}, None, RECIPES)
    assert [line_of_error(error, ["env", "backend.env"]) for error in errors] == [key]


def test_an_own_script_takes_the_recipes_place():
    before = profile("p")
    values = {
        **values_of(before, RECIPES),
        "recipe.kind": "script",
        "recipe.script": "my train.py",
        "recipe.args": "--x 'a b'",
    }
    after = profile_of(values, before, RECIPES)
    assert (after.recipe.name, after.recipe.script, after.recipe.args) == (None, "my train.py", ("--x", "a b"))


@pytest.mark.parametrize(
    ("line", "value", "said"),
    [
        *rows("tui/edit", "what_is_wrong_is_said_at_its_line"),
        (f"{ARGUMENT}steps", "ten", "'ten' is not a whole number"),
        (f"{ARGUMENT}lr", "fast", "'fast' is not a number"),
    ],
)
def test_what_is_wrong_is_said_at_its_line(line: str, value: str, said: str):
    values = {**values_of(profile("p"), RECIPES), line: value}
    lines = [field.id for field in fields(values, RECIPES, BACKENDS)]
    with pytest.raises(ProfileError) as caught:
        profile_of(values, None, RECIPES)
    assert said in caught.value.reason
    assert line_of_error(caught.value, lines) == line


def test_every_wrong_line_is_found_at_once():
    wrong = {
        "name": "a/b", "layout.nodes": "gpu01:x", "layout.ranks_per_node": "many", f"{ARGUMENT}steps": "ten",
        f"{ARGUMENT}lr": "fast", "recipe.args": "'never closed",
    }  # fmt: skip
    values = {**values_of(profile("p"), RECIPES), **wrong}
    lines = [field.id for field in fields(values, RECIPES, BACKENDS)]
    errors = errors_of(values, None, RECIPES)
    assert {line_of_error(error, lines) for error in errors} == set(wrong)
    assert len(errors) == len(wrong)


@pytest.mark.parametrize("kind", ["script", "module"])
def test_an_empty_script_is_one_error_among_others(kind: str):
    values = {**values_of(None, RECIPES), "name": "", "recipe.kind": kind}
    lines = [field.id for field in fields(values, RECIPES, BACKENDS)]
    assert {line_of_error(error, lines) for error in errors_of(values, None, RECIPES)} == {"name", f"recipe.{kind}"}


def test_a_form_that_is_right_has_no_errors():
    assert errors_of({**values_of(None, RECIPES), "name": "p"}, None, RECIPES) == []


def test_an_error_about_what_the_form_has_no_line_for_has_no_line():
    assert line_of_error(ProfileError("f", None, "metrics.patterns", "is odd"), ["name"]) is None


@pytest.mark.parametrize(("taken", "free"), [(set(), "a"), ({"a"}, "a-2"), ({"a", "a-2"}, "a-3")])
def test_a_new_name_is_one_that_nothing_has(taken: set[str], free: str):
    assert free_name("a", taken) == free


# --- the screen ------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(engine: FakeEngine) -> RankdeckApp:
    return RankdeckApp(engine)


def line(app: RankdeckApp, key: str) -> Input | Choice:
    return next(row.line for row in app.screen.query(FormRow) if row.field.id == key)


async def opened(pilot, key: str, *texts: str) -> None:
    await until_seen(pilot, "Plan: quickstart")
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, EditScreen), "the form")
    await until_seen(pilot, "recipe", *texts)
    await until(pilot, lambda: pilot.app.focused is not None, "the cursor on the first line")


@contextlib.asynccontextmanager
async def form(app: RankdeckApp, key: str, *texts: str, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Pilot[None]]:
    """Runs the app, and begins in the form that a key opens."""
    async with app.run_test(notifications=True, size=size) as pilot:
        await opened(pilot, key, *texts)
        yield pilot


async def test_a_new_run_is_put_together_with_the_keyboard_alone(app: RankdeckApp, engine: FakeEngine):
    async with form(app, "n", "New: my-run", "4 ranks on 1 node") as pilot:
        typed: tuple[list[str], ...] = (
            ["end", "x"],
            [],
            ["right"],
            [*"gloo"],
            ["2"],
            ["3"],
            ["space"],
            ["l"],
            [*"--x 1"],
        )
        for number, keys in enumerate(typed):
            await pilot.press(*keys)
            if number == 4:
                # `2` was typed at the nodes: no such host, said at the line.
                await until_seen(pilot, "'2' is a number, not a node")
                await pilot.press("backspace")
            await pilot.press("down")
        assert line(app, "name").value == "my-runx"
        assert line(app, "backend.name").value == "nccl"
        await until_seen(pilot, "3 ranks on 1 node")
        await after(pilot, "f5", on=RunScreen)
        launched = engine.launched[0]
        assert (launched.name, launched.backend.name, launched.layout.ranks_per_node) == ("my-runx", "nccl", 3)
        assert launched.backend.fallback == ("gloo",)
        assert (launched.layout.order, launched.recipe.name, launched.recipe.args) == ("cyclic", "linear", ("--x", "1"))
        await pilot.press("q")
        await until(pilot, lambda: len(app.screen_stack) == 1, "home: the run has taken the place of the form")


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_labels_of_the_form_are_whole_words(engine: FakeEngine, ascii_only: bool):
    long = "gradient-accumulation-steps"
    engine.declared["train.py"] = tuple(
        Argument(name=name, type="int", default=1, help="a number") for name in ("checkpoint-every", long)
    )
    mine = profile("mine", recipe="gpt")
    mine = msgspec.structs.replace(mine, recipe=msgspec.structs.replace(mine.recipe, name=None, script="train.py"))
    engine.entries = [entry(profile("quickstart"), engine.folder), entry(mine, engine.folder)]
    app = RankdeckApp(engine, ascii=ascii_only)
    async with app.run_test(size=(80, 60)) as pilot:
        await opened(pilot, "e", " more arguments ", " backend env ")
        await after(pilot, "escape j", "Plan: mine")
        await after(pilot, "e", " checkpoint-every ", "gradient-acc")
        app.screen.set_focus(line(app, f"argument.{long}"))
        await until_seen(pilot, f"{long}: a number")  # below the form, because the label is cut
        assert not ascii_only or "…" not in text_of(app)


async def test_the_cursor_stays_where_the_user_goes_after_a_save_that_was_refused(app: RankdeckApp):
    async with form(app, "e", "4 ranks on 1 node", size=(120, 40)) as pilot:
        screen = app.screen
        assert isinstance(screen, EditScreen)
        line(app, "name").value = "a/b"
        await until_seen(pilot, "is not a valid name")
        line(app, "launch.python").focus()
        await until(pilot, lambda: line(app, "launch.python").has_focus, "the last lines")
        await screen.run_action("save")
        screen.set_focus(line(app, "layout.nodes"))
        await pilot.pause()
        assert line(app, "layout.nodes").has_focus


async def test_the_folder_of_a_saved_profile_is_listed_if_the_user_wants_it(engine: FakeEngine, tmp_path: Path):
    app = RankdeckApp(engine)
    async with showing(app, "Plan: quickstart", size=(120, 40)) as pilot:
        for answer, listed in (("n", []), ("y", [tmp_path / "team"])):
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, EditScreen) and app.focused is not None, "the form")
            await after(pilot, "f4", on=AskScreen)
            app.screen.query_one(Input).value = str(tmp_path / "team" / f"{answer}.toml")
            await after(pilot, "enter", "List the profiles of this folder?", "found by")
            await pilot.press(answer)
            await until(pilot, lambda: isinstance(app.screen, EditScreen), "the form")
            await until(pilot, lambda listed=listed: engine.folders == listed, "the folder")  # type: ignore[misc]
            await after(pilot, "escape", on=HomeScreen)


async def test_a_duplicate_of_a_profile_of_the_folder_is_saved_beside_it(app: RankdeckApp, engine: FakeEngine):
    here = engine.folder / ".rankdeck"
    engine.entries[0] = entry(profile("quickstart"), here, "here")
    async with form(app, "d", "New: quickstart-copy") as pilot:
        await after(pilot, "ctrl+s", "saved: ")
        assert engine.saved[0][1] == here / "quickstart-copy.toml"


async def test_a_profile_that_can_not_be_written_is_said_and_the_form_stays(
    app: RankdeckApp, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> Path:
        raise ProfileError("/x/[/a.toml", None, "", "can't be written: Permission denied")

    monkeypatch.setattr(engine, "save_profile", refuse)
    async with form(app, "e") as pilot:
        await after(pilot, "ctrl+s", "quickstart was not saved", "/x/[/a.toml: can't be written")
        await after(pilot, "escape", "Edit: quickstart")


async def test_a_new_run_in_a_folder_with_python_files_is_of_a_script(
    app: RankdeckApp, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("data.py", "train_gpt.py", "setup.py", "test_a.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    async with form(app, "n", "New: train_gpt", "● script", "train_gpt.py", "F7 choose file", size=(120, 40)) as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: bool(engine.launched), "the launch")
        assert (engine.launched[0].name, engine.launched[0].recipe.script) == ("train_gpt", "train_gpt.py")


# --- a choice --------------------------------------------------------------------------------------------------------

MANY = ["first", "second", "third", "fourth", "fifth"]


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", [1, 12, 20, 30, 45, 80])
async def test_the_chosen_one_is_whole_and_in_sight_and_a_sign_says_where_there_are_more(width: int, ascii_only: bool):
    choice = Choice(MANY, "first", ascii=ascii_only)

    class ChoiceApp(App[None]):
        CSS_PATH = CSS

        def compose(self) -> ComposeResult:
            yield choice

    async with ChoiceApp().run_test(size=(width, 1)):
        for chosen in MANY:
            choice.choose(chosen)
            shown = str(choice.render()).rstrip()
            names = [name for name in MANY if name in shown.split()]
            assert chosen in names
            assert shown.startswith("<") == (names[0] != MANY[0])
            assert shown.endswith(">") == (names[-1] != MANY[-1])
            if width >= 16:
                assert len(shown) <= width


async def test_a_chosen_one_without_room_is_cut_and_not_left_out():
    choice = Choice(MANY, "third", ascii=False)

    class ChoiceApp(App[None]):
        CSS_PATH = CSS

        def compose(self) -> ComposeResult:
            yield choice

    async with ChoiceApp().run_test(size=(7, 1)):
        assert choice.render_line(0).text == "< ● thi"


# --- keys that arrive together, and lines in sight --------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_an_error_that_appears_below_the_line_with_the_cursor_is_in_sight(
    engine: FakeEngine, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    app = RankdeckApp(engine)
    reason = "what is wrong with it, in words that need two lines of the form at least, or three of them"

    def preview(_profile: Profile, _permit: object) -> LaunchPlan:
        row = app.screen.focused.parent if app.screen.focused is not None else None
        raise ProfileError("form", None, row.field.id if isinstance(row, FormRow) else "", reason)

    monkeypatch.setattr(engine, "preview", preview)
    async with showing(app, "quickstart", "mine", size=size) as pilot:
        await after(pilot, "e", "Edit: quickstart")
        await until(pilot, lambda: isinstance(app.focused, Input), "the cursor on the first line")
        screen = app.screen
        assert isinstance(screen, EditScreen)
        for row in list(screen.query(FormRow)):
            screen.set_focus(row.line)
            await until(pilot, partial(whole, app, row), f"all of {row.field.id}")
            if row.field.id != BACKEND:  # there the pane lists backends instead
                screen._plan.make()
                await until(pilot, partial(whole, app, row, 2), f"{row.field.id} with its error")


def whole(app: RankdeckApp, row: FormRow, height: int = 1) -> bool:
    """Whether all of a line is in sight, and has at least so many lines."""
    return row.region.height >= height and app.screen.query_one(Form).content_region.contains_region(row.region)


async def test_a_change_whose_message_is_under_way_is_not_lost(engine: FakeEngine):
    app = RankdeckApp(engine)
    async with showing(app, "Plan: quickstart") as pilot:
        await pilot.press("e")
        await until(pilot, lambda: bool(app.screen.query(FormRow)), "the form")
        row = next(row for row in app.screen.query(FormRow) if row.field.id == "description")
        assert isinstance(row.line, Input)
        with row.line.prevent(Input.Changed):
            row.line.value = "typed just now"
        await after(pilot, "escape", "Leave without saving?")
