"""The history of runs and the comparison: what is listed, and that keys act on the run under the cursor or on marked ones."""

import asyncio
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.app import App, ComposeResult
from textual.content import Content
from textual.widgets import Input

from engine.core.metrics.series import Point
from engine.core.plan.plan import Swept
from tests.tui.fake_engine import FakeEngine
from tests.tui.seen import after, showing, text_of, until, until_gone, until_seen
from tui.app import RankdeckApp
from tui.screens.compare import CompareScreen
from tui.screens.confirm import AskScreen
from tui.screens.edit import EditScreen
from tui.screens.history import HistoryScreen
from tui.screens.home import HomeScreen
from tui.screens.run import RunScreen
from tui.widgets.line_list import LineList


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    engine = FakeEngine(tmp_path)
    for name in ("gpt-aaaa", "gpt-bbbb", "linear-cccc"):
        run = engine.add_run(name)
        run.end()
    return engine


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_history_shows_what_differs_and_compares_with_the_run_before(
    engine: FakeEngine, size: tuple[int, int]
):
    app = RankdeckApp(engine)
    async with showing(app, "gpt-aaaa", size=size) as pilot:
        await after(pilot, "H", "3 runs", "1 MiB", "--lr 0.2 (was 0.1)", "newest first")
        await after(pilot, "j c", on=CompareScreen)
        text = await until_seen(pilot, "--lr", "gpt-aaaa")
        assert text.index("gpt-aaaa") < text.index("gpt-bbbb")
        await after(pilot, "escape", "newest first")
        await after(pilot, "q", on=HomeScreen)


async def test_a_filter_a_note_and_a_star(engine: FakeEngine):
    async with showing(RankdeckApp(engine), "gpt-aaaa", size=(120, 30)) as pilot:
        await after(pilot, "H", "3 runs")
        await pilot.press("slash", *"linear", "enter")
        await until_gone(pilot, "gpt-aaaa")
        await pilot.press("n", *"good", "enter", "asterisk")
        await until(pilot, lambda: bool(engine.notes) and engine.notes["linear-cccc"].starred, "the star")
        assert engine.notes["linear-cccc"].text == "good"
        await after(pilot, "escape", "gpt-aaaa")


async def test_a_run_is_launched_again_as_it_was_with_other_arguments_or_from_the_form(engine: FakeEngine):
    app = RankdeckApp(engine)
    async with showing(app, "gpt-aaaa", size=(120, 30)) as pilot:
        await after(pilot, "H", "3 runs")
        await pilot.press("r")
        await until(pilot, lambda: len(engine.launched) == 1, "the launch")
        await until(pilot, lambda: not isinstance(app.screen, HistoryScreen), "the run")
        await after(pilot, "A", on=AskScreen)
        app.screen.query_one(Input).value = "--lr '0.1 x'"
        await pilot.press("enter")
        await until(pilot, lambda: len(engine.launched) == 2, "the launch")
        assert engine.launched[1].recipe.args == ("--lr", "0.1 x")
        await until(pilot, lambda: not isinstance(app.screen, AskScreen), "the run")
        await after(pilot, "ctrl+r", on=EditScreen)
        await until_seen(pilot, "Launch again: linear")
        await pilot.press("f5")
        await until(pilot, lambda: len(engine.launched) == 3, "the launch")
        assert engine.launched[2].name == "linear"


async def test_the_code_of_two_runs_is_compared(engine: FakeEngine):
    app = RankdeckApp(engine)
    async with showing(app, "gpt-aaaa", size=(120, 30)) as pilot:
        for run in ("gpt-aaaa", "gpt-bbbb"):
            for key in ("loss", "grad_norm"):
                engine.live[run].series.append(Point(0, key, 1.0, 1, 1.0))
        app.open_compare(("gpt-aaaa", "gpt-bbbb"))
        await until_seen(pilot, "--lr")
        await after(pilot, "p", "part of the name of a metric")
        await pilot.press(*"norm", "enter")
        await until_gone(pilot, "part of the name of a metric")
        await until_seen(pilot, "grad_norm")
        await after(pilot, "d", "uncommitted changes of the code are the same")
        await after(pilot, "d", gone="uncommitted changes of the code are the same")
        assert "Runs" in text_of(app)


async def test_ten_runs_are_compared_and_told_apart(engine: FakeEngine):
    runs = [engine.add_run(f"lr-{number}").view.run for number in range(10)]
    for number, run in enumerate(runs):
        engine.live[run].series.append(Point(0, "loss", 1.0, 1, float(number)))
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        app.open_compare(tuple(runs))
        text = await until_seen(pilot, "lr-9  lr-9")
        assert {f"{sign} lr-{number}" for number, sign in enumerate("●▲■◆+#▲■◆+")} < set(re.findall(r". lr-\d", text))
        await until_seen(pilot, "● --lr lr-0  ▲ --lr lr-1")
        engine.live["lr-3"].series.append(Point(0, "new", 2.0, 1, 1.0))
        await until_seen(pilot, "choose metric")


async def test_a_run_takes_the_place_of_the_one_it_was_launched_from_and_is_compared_with_it(engine: FakeEngine):
    app = RankdeckApp(engine, open_run="linear-cccc")
    async with app.run_test(notifications=True, size=(120, 30)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, RunScreen), "the run")
        app.launch(await asyncio.to_thread(engine.launched_profile, "linear-cccc"))
        await until(
            pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.run_id == "linear-0001", "the new run"
        )
        assert len(app.screen_stack) == 2
        await after(pilot, "C", on=CompareScreen)
        await until_seen(pilot, "linear-cccc", "linear-0001")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_runs_of_one_sweep_have_columns_of_their_values_and_are_sorted_by_the_best(
    engine: FakeEngine, size: tuple[int, int]
):
    for number, run in enumerate(("gpt-aaaa", "gpt-bbbb"), 1):
        engine.best[run] = {"val_loss": number / 4}
        swept = Swept(sweep="mine", values={"lr": f"{number}e-4"}, number=number, runs=2)
        engine.live[run].view = replace(engine.live[run].view, swept=swept)
    async with showing(RankdeckApp(engine), "gpt-aaaa", size=size) as pilot:
        await after(pilot, "H", "3 runs")
        await pilot.press("slash", *"mine", "enter")
        await until_gone(pilot, "linear-cccc")
        text = await after(pilot, "less_than_sign", "by best val_loss", "mine, run 1 of 2: lr 1e-4", "0.25", "0.5")
        assert text.index("1e-4") < text.index("2e-4")
        text = await after(pilot, "less_than_sign", "by value of lr", "▼lr")
        text = await after(pilot, "v", "mean over lr", "0.3750 ± 0.1768", "mine, run 1 of 2: lr 1e-4")
        await after(pilot, "v", "▼lr", gone="mean over")
        await after(pilot, "space space c", on=CompareScreen)


async def test_keys_go_on_below_the_lines_that_are_made_at_first():
    class Runs(LineList):
        OPEN = "open"

    class ListApp(App[None]):
        def compose(self) -> ComposeResult:
            yield Runs(id="runs", empty="none")

    app = ListApp()
    async with app.run_test() as pilot:
        runs = app.query_one(Runs)
        runs.set_entries([str(n) for n in range(450)], lambda most: [Content(str(n)) for n in range(min(most, 450))])
        runs.focus()
        for key, chosen in (("end", "449"), ("down", "449"), ("home", "0"), ("up", "0")):
            await pilot.press(key)
            assert runs.chosen == chosen
        runs.choose("199")
        await pilot.press("down")
        assert runs.chosen == "200"
