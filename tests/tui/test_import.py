"""A launch command that is pasted becomes a form, and starts nothing."""

from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from tests.support import entries
from tests.tui.fake_engine import FakeEngine
from tests.tui.seen import after, showing, until, until_gone, until_seen
from tui.app import RankdeckApp
from tui.screens.confirm import ConfirmScreen
from tui.screens.edit import EditScreen
from tui.screens.home import HomeScreen
from tui.widgets.form_row import FormRow

TORCHRUN = "torchrun --nproc-per-node 3 --rdzv-id x train.py --lr 1e-3"

BATCH = entries("tui/import", "batch")


@pytest.fixture
def app(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> RankdeckApp:
    """In a folder without a script, whose name a new form would take."""
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    return RankdeckApp(engine)


def paste(pilot: Pilot[Any], text: str) -> None:
    """As a terminal does with bracketed paste."""
    pilot.app.post_message(events.Paste(text))


def values(app: RankdeckApp) -> dict[str, str]:
    return {row.field.id: row.line.value for row in app.screen.query(FormRow)}


async def until_form(pilot: Pilot[Any], app: RankdeckApp, name: str) -> None:
    def is_filled() -> bool:
        return isinstance(app.screen, EditScreen) and values(app).get("name") == name and app.focused is not None

    await until(pilot, is_filled, f"the form of {name}")


async def test_a_command_that_is_pasted_on_home_becomes_a_form(app: RankdeckApp, engine: FakeEngine):
    async with showing(app, "Plan: quickstart", size=(120, 40)) as pilot:
        paste(pilot, f"  {TORCHRUN}\n")
        await until_form(pilot, app, "train")
        await until_seen(pilot, "New: train", "left out: --rdzv-id: rankdeck finds")
        found = values(app)
        assert found["recipe.script"] == "train.py"
        assert found["layout.ranks_per_node"] == "3"
        assert found["recipe.args"] == "--lr 1e-3"
        assert found["backend.name"] == "auto"
        assert not engine.launched
        assert not engine.saved
        await pilot.press("ctrl+s")
        await until(pilot, lambda: [one.name for one, path in engine.saved if path is None] == ["train"], "saved")


async def test_a_command_is_shown_as_a_form_and_nothing_of_it_is_looked_up(app: RankdeckApp, engine: FakeEngine):
    async with showing(app, "Plan: quickstart", size=(120, 40)) as pilot:
        paste(pilot, BATCH)
        await until_form(pilot, app, "big")
        await until_seen(pilot, "not looked up")
        assert values(app)["recipe.args"] == "--epochs 3"
        assert engine.launched == []


async def test_a_command_can_be_typed_and_nodes_that_it_does_not_name_are_asked_for(app: RankdeckApp):
    async with showing(app, "Plan: quickstart", size=(120, 40)) as pilot:
        await after(pilot, "i", "Import a launch command")
        await pilot.press(*"torchrun --nnodes 2 --nproc-per-node 4 t.py", "enter")
        await until_form(pilot, app, "t")
        await until_seen(pilot, "left out: 2 nodes: the command does not name them")
        assert values(app)["layout.ranks_per_node"] == "4"


async def test_a_batch_file_can_be_pasted_where_a_command_is_asked_for(app: RankdeckApp):
    async with showing(app, "Plan: quickstart") as pilot:
        await after(pilot, "i", "Import a launch command")
        paste(pilot, BATCH.replace("module load cuda\n", ""))
        await until_form(pilot, app, "big")


async def test_what_is_no_command_is_said(app: RankdeckApp):
    async with showing(app, "Plan: quickstart", size=(120, 40)) as pilot:
        paste(pilot, "what is [this]")
        await until_seen(pilot, "This command can't be imported")
        await pilot.press("escape")
        paste(pilot, " \n")
        paste(pilot, "torchrun \x1b[31m\x1b]52;c;eA==\x07 'a\x1b[2Jb.py'")
        await until_seen(pilot, "characters that a form can't show")
        assert isinstance(app.screen, HomeScreen)


async def test_a_form_is_filled_by_what_is_pasted_and_asks_where_something_would_be_lost(app: RankdeckApp):
    async with showing(app, "Plan: quickstart", size=(120, 40)) as pilot:
        await pilot.press("n")
        await until_form(pilot, app, "my-run")
        await until_seen(pilot, "paste a launch command")
        paste(pilot, TORCHRUN)
        await until_form(pilot, app, "train")
        assert len(app.screen_stack) == 2
        await pilot.press("x")
        paste(pilot, "mpirun -np 2 python other.py")
        await until_seen(pilot, "Fill the form again?")
        await pilot.press("n")
        await until_form(pilot, app, "trainx")
        paste(pilot, "mpirun -np 2 python other.py")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen), "the question")
        await pilot.press("y")
        await until_form(pilot, app, "other")
        assert len(app.screen_stack) == 2
        paste(pilot, "-torchrun")
        await until_form(pilot, app, "other-torchrun")


async def test_in_the_form_of_a_file_and_in_the_filter_a_command_is_text(app: RankdeckApp):
    async with showing(app, "Plan: quickstart", size=(120, 40)) as pilot:
        await pilot.press("e")
        await until_form(pilot, app, "quickstart")
        paste(pilot, TORCHRUN)
        await until_form(pilot, app, f"quickstart{TORCHRUN}")
        await after(pilot, "escape y", on=HomeScreen)
        await pilot.press("slash")
        paste(pilot, TORCHRUN)
        await until_seen(pilot, "Nothing matches.")
        assert isinstance(app.screen, HomeScreen)


async def test_an_app_that_only_watches_takes_no_command(engine: FakeEngine):
    app = RankdeckApp(engine, read_only=True)
    async with showing(app, "Plan: quickstart", size=(120, 40)) as pilot:
        paste(pilot, TORCHRUN)
        await until_seen(pilot, "opened with --read-only")
        await until_gone(pilot, "i import")
        assert isinstance(app.screen, HomeScreen)
