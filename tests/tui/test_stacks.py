"""The stacks of a run: taken when asked for, shown as text, taken again."""

import asyncio
import re

import pytest
from rich.cells import cell_len
from textual.worker import WorkerState

from tests.tui.fake_engine import RUN, FakeEngine, FakeRun
from tests.tui.hostile import CORPUS
from tests.tui.seen import after, showing, until, until_gone, until_seen
from tui.app import RankdeckApp
from tui.screens.stacks import StacksScreen
from tui.text.run import stacks_text
from tui.widgets.text_pane import TextPane


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_stacks_are_shown_with_the_time_they_were_taken_at(
    engine: FakeEngine, run: FakeRun, size: tuple[int, int], ascii_only: bool
):
    async with showing(RankdeckApp(engine, open_run=RUN, ascii=ascii_only), "running", "t stacks", size=size) as pilot:
        text = await after(pilot, "t", "ranks 0-3: waiting in all_reduce", "    step  /home/someone/train.py:41")
        assert re.search(r"Stacks of quickstart, taken at \d\d:\d\d:\d\d", text)
        assert "r again" in text
        assert "esc close" in text
        assert text.isascii() or not ascii_only
        await after(pilot, "escape", "running", "t stacks")
        assert run.asked == [("stacks",)]


@pytest.mark.parametrize("key", ["r", "t"])
async def test_while_an_answer_is_waited_for_that_is_said_and_nothing_else_is_asked(
    app: RankdeckApp, run: FakeRun, key: str
):
    run.hold_answers = asyncio.Event()
    async with showing(app, "t stacks") as pilot:
        text = await after(pilot, "t", "Stacks of quickstart, asking", "Asking every rank for its stack")
        assert "again" not in text
        await pilot.press(key, key)
        run.hold_answers.set()
        await until_seen(pilot, "waiting in all_reduce", "taken at", "r again")
        assert run.asked == [("stacks",)]
        run.stacks = ["rank 3: in load (data.py:7)"]
        run.hold_answers.clear()
        await after(pilot, key, ", asking", "waiting in all_reduce")
        run.hold_answers.set()
        await until_seen(pilot, "rank 3: in load (data.py:7)")
        await until_gone(pilot, ", asking")
        await until_gone(pilot, "waiting in all_reduce")


async def test_the_screen_can_be_left_while_it_waits(app: RankdeckApp, run: FakeRun):
    run.hold_answers = asyncio.Event()
    async with showing(app, "t stacks") as pilot:
        await after(pilot, "t", "Asking every rank")
        (worker,) = [worker for worker in app.workers if isinstance(worker.node, StacksScreen)]
        await after(pilot, "escape", "● running")
        await until(pilot, lambda: worker.is_finished, "the end of the request")
        assert worker.state is WorkerState.CANCELLED
        run.tick(7)
        await until_seen(pilot, "7/100")


async def test_a_long_answer_scrolls(app: RankdeckApp, run: FakeRun):
    run.stacks = [f"    call_{number}  /x.py:{number}" for number in range(200)]
    async with showing(app, "t stacks") as pilot:
        await after(pilot, "t", "call_0")
        await until(pilot, lambda: app.screen.query_one(TextPane).has_focus, "the stacks")
        await after(pilot, "end", "call_199")
        await after(pilot, "g space", gone="call_0 ")


async def test_hostile_paths_and_names_are_shown_as_text(app: RankdeckApp, run: FakeRun):
    run.change(name="[/x[red")
    run.stacks = ["rank 0: in [bold (\x1b[2Ja.py:1)", "    [/f  /tmp/\x1b]52;c;ZXZpbA==\x07[red/\x9b2J\u202ea.py:1"]
    async with showing(app, "t stacks") as pilot:
        text = await after(pilot, "t", "Stacks of [/x[red", "rank 0: in [bold (a.py:1)", "    [/f  /tmp/[red/a.py:1")
        assert not {"\x1b", "\x9b", "\u202e"} & set(text)


# --- the text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", CORPUS.values(), ids=CORPUS.keys())
@pytest.mark.parametrize("width", [1, 20, 80])
def test_whatever_is_in_a_line_nothing_but_text_gets_out_and_no_line_is_too_long(data: bytes, width: int):
    written = data.decode(errors="replace")[:5000].replace("\n", " ")
    for line in stacks_text([f"rank 0: {written}", f"    {written}"], width).plain.split("\n"):
        assert line.isprintable()
        assert cell_len(line.lstrip(" ")) <= max(width, 2)


def test_the_end_of_a_long_path_can_be_read():
    lines = stacks_text([f"    step  /{'folder/' * 20}train.py:41"], 80).plain.split("\n")
    assert lines[0].startswith("    step  /folder/")
    assert lines[-1].endswith("train.py:41")
    assert all(line.startswith("      folder/") and line.endswith("/") for line in lines[1:-1])
    assert "".join(line.strip() for line in lines) == f"step  /{'folder/' * 20}train.py:41"


def test_no_rank_at_all_is_said():
    assert stacks_text([], 80).plain == "No rank has a stack."
