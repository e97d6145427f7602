"""The check of a profile's nodes: opened from home, filled in live, one cell told of in words."""

from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from engine.core.checks.findings import CHECKS, Finding, Grid, fail, ok, skip, warn
from tests.tui.fake_engine import FakeEngine
from tests.tui.hostile import CORPUS
from tests.tui.seen import after, text_of, until, until_gone, until_seen
from tui.app import RankdeckApp
from tui.text.check import finding_text, grid_title
from tui.widgets.check_grid import CheckGrid, Columns
from tui.widgets.line_keys import line_width

REFUSED = fail("gpu02", "ssh", "nothing listens there [/red]", "is sshd up?")
OLD = warn("gpu02", "torch", "2.6.0, but gpu01 has 2.13.0", "install the same torch on all nodes")


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    engine = FakeEngine(tmp_path)
    engine.findings = [REFUSED, OLD, skip("gpu01", "gpus", "ranks compute on the CPU")]
    return engine


async def opened(pilot: Pilot[None]) -> CheckGrid:
    """The grid, once everything is in it."""
    await until_seen(pilot, "Plan: quickstart", "c check")
    await after(pilot, "c", "r again")
    app = pilot.app
    assert isinstance(app, RankdeckApp)
    return app.screen.query_one(CheckGrid)


def rows(app: RankdeckApp) -> dict[str, str]:
    """Lines of the screen by the node that they are about."""
    lines = (line.strip("│| ").lstrip("▸>") for line in text_of(app).splitlines())
    return {words[0]: line for line in lines if (words := line.split())}


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("size", [(80, 24), (150, 40)])
async def test_every_node_has_a_row_and_every_check_a_sign(engine: FakeEngine, size: tuple[int, int], ascii_only: bool):
    app = RankdeckApp(engine, ascii=ascii_only)
    async with app.run_test(notifications=True, size=size) as pilot:
        await opened(pilot)
        text = await until_seen(pilot, "Check of quickstart, 2 nodes: 1 failure, 1 warning", "gpu01", "gpu02")
        good, cautious, bad = "*!X" if ascii_only else "●▲✖"
        found = rows(app)
        assert (found["gpu01"].count(good), found["gpu01"].count(bad)) == (15, 0)
        assert [found["gpu02"].count(sign) for sign in (good, cautious, bad)] == [14, 1, 1]
        assert ("leftovers" in text) == (f"{bad} fail" in found["gpu02"]) == (size[0] > 100)
        assert text.isascii() or not ascii_only
        await after(pilot, "escape", "Plan: quickstart")


async def test_the_cursor_begins_at_the_first_problem_and_goes_to_the_next(engine: FakeEngine):
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        grid = await opened(pilot)
        await until_seen(pilot, "gpu02, ssh  ✖ fail", "nothing listens there [/red]", "is sshd up?")
        await after(pilot, "n", "gpu02, torch  ▲ warn", "install the same torch")
        await after(pilot, "n", "gpu02, ssh  ✖ fail")
        await pilot.press("l", "right", "k")
        assert grid.cell == ("gpu01", "torch")
        await until_seen(pilot, "gpu01, torch  ● ok", "torch of gpu01 is well", "Checked: that Python has torch")
        await pilot.press("h", "left", "left", "up", "G")
        assert grid.cell == ("gpu02", "ssh")


async def test_many_nodes_scroll(engine: FakeEngine):
    engine.nodes = tuple(f"gpu{number:03}" for number in range(300))
    engine.findings = [fail("gpu299", "leftovers", "the last of all", "")]
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        grid = await opened(pilot)
        await until_seen(pilot, "300 nodes: 1 failure", "gpu299, leftovers", "the last of all")
        await after(pilot, "g", "gpu000")
        await until_gone(pilot, "gpu299")
        await after(pilot, "pagedown ctrl+d ctrl+u pageup G", "▸gpu299")
        assert grid.cell == ("gpu299", "leftovers")


async def test_a_click_chooses_a_cell(engine: FakeEngine):
    app = RankdeckApp(engine)
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        grid = await opened(pilot)
        columns = Columns.fitted(line_width(grid), node=5)
        await pilot.click(CheckGrid, offset=(2 + 1 + columns.node + 3 * columns.checks[0], 2))
        await until(pilot, lambda: grid.cell == ("gpu01", "backend"), f"backend, not {grid.cell}")
        await pilot.click(CheckGrid, offset=(3, 3))
        await until(pilot, lambda: grid.cell == ("gpu02", "backend"), f"gpu02, not {grid.cell}")
        await pilot.click(CheckGrid, offset=(3, 10))
        assert grid.cell == ("gpu02", "backend")


# --- text and columns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [4, 8, 30])
@pytest.mark.parametrize("width", range(20, 200, 7))
def test_columns_fit_and_have_words_where_there_is_room(width: int, node: int):
    columns = Columns.fitted(width, node=node)
    used = 1 + columns.node + sum(columns.checks)
    assert used <= max(width, 1 + 1 + 2 * len(CHECKS))
    assert columns.node >= 1
    if width >= 76:
        assert columns.checks[0] >= 4 or columns.has_words
    assert columns.has_words == (width >= 137) or 107 < width < 142


@pytest.mark.parametrize("data", CORPUS.values(), ids=CORPUS.keys())
@pytest.mark.parametrize("width", [1, 20, 80])
def test_whatever_a_node_says_nothing_but_text_gets_out(data: bytes, width: int):
    said = data.decode(errors="replace")[:5000]
    finding = Finding(node=said[:80], check="script", state="fail", text=said, hint=said)
    for line in finding_text(said[:80], "script", finding, width, ascii=False).plain.split("\n"):
        assert line.isprintable()
        assert cell_len(line) <= max(width, 2)


def test_the_title_counts_nodes_and_problems():
    grid = Grid(["gpu01"])
    assert grid_title("job", grid, is_running=True, ascii=True) == "Check of job, 0 of 1 nodes: checking"
    assert grid_title("job", grid, is_running=False, ascii=True) == "Check of job, 1 node: no problems"
    for check in CHECKS:
        grid.take(ok("gpu01", check, ""))
    grid.take(fail("gpu01", "ssh", "", ""))
    grid.take(fail("gpu01", "disk", "", ""))
    long = grid_title("n" * 50, grid, is_running=True, ascii=True)
    assert long == f"Check of {'n' * 23}~, 1 of 1 nodes: 2 failures, checking"
