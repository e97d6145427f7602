"""Paths in the form: the rest of what is typed, and a list of scripts."""

from pathlib import Path

import pytest
from textual.widgets import Input

from tests.support import entries, from_table, parse_profile
from tests.tui.fake_engine import FakeEngine, entry
from tests.tui.seen import after, showing, until, until_gone, until_seen
from tui.app import RankdeckApp
from tui.data import path_lines
from tui.data.path_lines import completed, scripts_below
from tui.widgets.form_row import FormRow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in entries("tui/path_lines", "folder"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "src" / "tr\x1b[31m.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@from_table
def test_the_rest_of_a_path_is_that_of_the_first_that_fits(
    text: str, ending: str | None, rest: str | None, folder: Path
):
    assert completed(text, folder, ending=ending) == rest


def test_a_path_may_be_absolute_or_begin_at_home(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(folder))
    assert completed(f"{folder}/src/ev", Path("/"), ending=".py") == f"{folder}/src/eval.py"
    assert completed("~/src/ev", Path("/"), ending=".py") == "~/src/eval.py"


def test_scripts_are_listed_nearest_first_and_no_terminal_is_at_risk(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert scripts_below(folder) == ["[b] c.py", "src/eval.py", "src/train.py"]
    monkeypatch.setattr(path_lines, "MOST_ENTRIES", 0)
    assert scripts_below(folder) == []
    assert scripts_below(folder / "missing") == []


async def test_a_script_that_is_chosen_takes_the_place_of_a_recipe(folder: Path):
    app = RankdeckApp(FakeEngine(folder))
    async with showing(app, "quickstart") as pilot:
        await after(pilot, "n", "New: b--c")
        await after(pilot, "f7", "part of the name of a script", "src/eval.py")
        await after(pilot, (*"eval", "enter"), "● script", "src/eval.py", "src/eval.py  ")
        await until(
            pilot,
            lambda: isinstance(row := app.focused and app.focused.parent, FormRow) and row.field.id == "recipe.script",
            "the cursor",
        )


async def test_a_script_is_completed_or_chosen_from_a_list(folder: Path):
    text = 'schema = 1\nname = "mytrain"\n[recipe]\nscript = "train.py"\n'
    engine = FakeEngine(folder, [entry(parse_profile(text, file="mytrain.toml"), folder)])
    app = RankdeckApp(engine)
    async with showing(app, "mytrain", size=(120, 40)) as pilot:
        await after(pilot, "e", "Edit: mytrain")
        row = next(row for row in app.screen.query(FormRow) if row.field.path == "script")
        line = row.line
        assert isinstance(line, Input)
        line.focus()
        await until_seen(pilot, "F7: choose one")
        await after(pilot, ("ctrl+u", *"src/t"), "src/train.py")
        await pilot.press("right")
        await until(pilot, lambda: line.value == "src/train.py", "the completed path")
        await after(pilot, "f7", "part of the name of a script", "[b] c.py", "src/eval.py")
        await pilot.press(*"eval", "enter")
        await until(pilot, lambda: line.value == "src/eval.py", "the chosen script")
        await until_gone(pilot, "part of the name")
        assert app.focused is line
