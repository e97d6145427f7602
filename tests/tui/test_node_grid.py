"""The ranks by node: boxes that share a width, cells that show what stands out, one cursor with the table."""

import math
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.content import Content

from engine.core.metrics.resources import GpuUse
from engine.core.views.view import NodeView, RankView
from tests.tui.fake_engine import FakeEngine, FakeRun
from tests.tui.hostile import CORPUS
from tests.tui.seen import after, showing, until, until_seen
from tests.tui.waiting import lines
from tui.app import RankdeckApp
from tui.text.node_cells import GAP, Boxes, cells_of
from tui.theme import CSS
from tui.widgets.node_grid import NodeGrid
from tui.widgets.rank_table import RankTable

RUN = "wide-7f3a"


def view(rank: int, node: str = "gpu01", **more: Any) -> RankView:
    fields: dict[str, Any] = {
        "rank": rank, "node": node, "local_rank": 0, "pid": 1, "state": "running", "exit": None, "attempt": 0, "generation": 0,
        "step": 812, "loss": 1.6, "throughput": 2500.0, "unit": "tok",
    }  # fmt: skip
    return RankView(**(fields | more))


def node(name: str, *ranks: int) -> NodeView:
    return NodeView(name=name, ranks=ranks, link="up", reason="", since=0.0)


def signs(*views: RankView, measure: Any = "throughput", ascii_only: bool = False) -> str:
    cells = cells_of({view.rank: view for view in views}, measure, ascii=ascii_only)
    return "".join(cells[view.rank].sign for view in views)


class GridApp(App[None]):
    CSS_PATH = CSS

    def __init__(self, nodes: list[NodeView], views: list[RankView], *, ascii_only: bool = False) -> None:
        super().__init__()
        self.nodes, self.views = nodes, {view.rank: view for view in views}
        self.grid = NodeGrid(ascii=ascii_only)
        self.moved: list[int | None] = []

    def compose(self) -> ComposeResult:
        yield self.grid

    def on_mount(self) -> None:
        self.grid.show_nodes(self.nodes, self.views, {})
        self.grid.focus()

    def on_cursor_moved(self) -> None:
        self.moved.append(self.grid.cursor_rank)


def many(nodes: int, ranks: int) -> GridApp:
    names = [f"gpu{index:02}" for index in range(nodes)]
    return GridApp(
        [node(name, *range(index * ranks, (index + 1) * ranks)) for index, name in enumerate(names)],
        [view(rank, names[rank // ranks]) for rank in range(nodes * ranks)],
    )


# --- cells ------------------------------------------------------------------------------------------------------------


def test_a_rank_that_runs_is_as_high_as_its_throughput_beside_the_greatest():
    assert signs(view(0), view(1, throughput=1250.0), view(2, throughput=0.0)) == "█▅▁"


def test_a_slow_rank_a_high_loss_and_a_late_step_stand_out():
    views = {rank: view(rank) for rank in range(8)}
    for measure, odd in (("throughput", {"throughput": 1900.0}), ("loss", {"loss": 2.5}), ("step lag", {"step": 807})):
        cells = cells_of(views | {3: view(3, **odd)}, measure, ascii=False)  # type: ignore[arg-type]
        assert [rank for rank, cell in cells.items() if cell.part == "alarm"] == [3]
        assert len({cell.sign for rank, cell in cells.items() if rank != 3}) == 1


def test_a_rank_in_another_state_is_its_sign_whatever_its_numbers():
    views = [view(rank, state=state) for rank, state in enumerate(["starting", "exited", "failed", "lost", "stopped"])]
    assert signs(*views) == "◌✔✖?■"
    assert signs(view(9, throughput=None), view(10, throughput=math.nan)) == "●×"  # noqa: RUF001


def test_values_that_no_scale_holds_are_marked():
    views = [view(0, loss=1e308), view(1, loss=-1e308), view(2, loss=math.inf), view(3, step=10**400), view(4, step=0)]
    for measure in ("throughput", "loss", "step lag"):
        assert len(signs(*views, measure=measure)) == 5
        assert signs(*views, measure=measure, ascii_only=True).isascii()


def gpu(used: int | None, total: int | None = 80) -> GpuUse:
    return GpuUse(utilisation=97, memory=used, memory_total=total)


def test_a_rank_is_as_high_as_its_gpu_is_full_and_one_that_is_nearly_so_stands_out():
    views = {rank: view(rank, gpu=gpu(used)) for rank, used in enumerate((0, 40, 76, 79, 99))}
    cells = cells_of(views, "memory", ascii=False)
    assert "".join(cell.sign for cell in cells.values()) == "▁▅███"
    assert [rank for rank, cell in cells.items() if cell.part == "alarm"] == [3, 4]


def test_a_rank_of_whose_gpu_nothing_is_known_is_its_sign():
    unknown = [gpu(None), gpu(40, None), gpu(40, 0), None]
    assert signs(*(view(rank, gpu=use) for rank, use in enumerate(unknown)), measure="memory") == "●●●●"


# --- boxes ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 80), st.integers(1, 5000))
def test_boxes_hold_every_rank_and_fit_where_they_can(width: int, name: int, ranks: int):
    boxes = Boxes.fitted(width, name=name, ranks=ranks)
    assert boxes.cells * boxes.lines >= ranks > boxes.cells * (boxes.lines - 1)
    if width >= 20:
        assert boxes.across * (boxes.width + GAP) - GAP <= width


async def test_boxes_stand_beside_each_other_with_state_and_cells():
    app = many(5, 4)
    app.views[6] = view(6, "gpu01", state="failed")
    async with app.run_test(size=(80, 6)) as pilot:
        await pilot.pause()
        shown = [line.rstrip() for line in lines(app.grid)]
        assert shown[0] == "▸gpu00 ● 4/4 ████   gpu01 ◐ 3/4 ██✖█   gpu02 ● 4/4 ████   gpu03 ● 4/4 ████"
        assert shown[1] == " gpu04 ● 4/4 ████"
        app.grid.show_nodes(app.nodes, app.views, {"gpu01": 12.0})
        assert "  gpu01 ? 12 s " in lines(app.grid)[0]


async def test_a_node_with_more_ranks_than_a_line_holds_takes_several():
    app = many(2, 128)
    async with app.run_test(size=(80, 12)) as pilot:
        await pilot.pause()
        assert sum(line.count("█") for line in lines(app.grid)) == 256
        await pilot.press("down", "down", "right")
        assert app.grid.cursor_rank == 2 * app.grid._boxes.cells + 1
        await pilot.press("G")
        assert app.grid.cursor_rank == 255


async def test_the_cursor_passes_nodes_with_few_ranks_among_others_with_many():
    app = GridApp([node("a", *range(4)), node("b", *range(4, 132))], [view(rank) for rank in range(132)])
    async with app.run_test(size=(80, 12)) as pilot:
        await pilot.pause()
        await pilot.press("l", "down")
        assert app.grid.cursor_rank == 5
        await pilot.press("down", "up", "up")
        assert app.grid.cursor_rank in (1, 3)
        await pilot.resize_terminal(40, 6)
        await pilot.press("G")
        assert app.grid.cursor_rank == 131


async def test_only_what_changed_is_repainted(monkeypatch):
    app = many(30, 8)
    async with app.run_test(size=(80, 12)) as pilot:
        await pilot.pause()
        regions: list[Any] = []
        monkeypatch.setattr(app.grid, "refresh", lambda *found, **_: regions.extend(found))
        app.grid.show_nodes(app.nodes, dict(app.views), {})
        assert regions == []
        app.grid.show_nodes(app.nodes, app.views | {0: view(0, "gpu00", throughput=100.0)}, {})
        assert [region.y for region in regions] == [0]


# --- the cursor --------------------------------------------------------------------------------------------------------


async def test_the_cursor_goes_from_rank_to_rank_and_from_node_to_node():
    app = many(6, 4)
    async with app.run_test(size=(80, 6)) as pilot:
        await pilot.pause()
        await pilot.press("right", "l", "l", "l", "h", "down", "up", "k", "G", "j", "home")
        await pilot.pause()
        assert app.moved[-1] == 0
        await pilot.press("right", "right", "right", "right")
        assert app.grid.cursor_rank == 4
        await pilot.press("left", "down")
        assert app.grid.cursor_rank == 19
        assert "rank 19 on gpu04" in str(app.grid.border_subtitle)


async def test_a_click_takes_the_cursor_to_the_cell():
    app = many(6, 4)
    async with app.run_test(size=(80, 6)) as pilot:
        await pilot.pause()
        column = lines(app.grid)[0].index("gpu01 ● 4/4 ████") + len("gpu01 ● 4/4 ██")
        await pilot.click(app.grid, offset=(column, 0))
        assert app.grid.cursor_rank == 6


async def test_hostile_names_stay_text():
    texts = [data.decode("utf-8", "surrogateescape") for data in CORPUS.values()]
    views = [view(rank, text, unit=text) for rank, text in enumerate(texts)]
    app = GridApp([node(text, rank) for rank, text in enumerate(texts)], views, ascii_only=True)
    async with app.run_test(size=(100, 60)) as pilot:
        await pilot.press("down", "right")
        for line in lines(app.grid):
            assert "\x1b" not in line
        assert isinstance(app.grid.border_subtitle, str | Content)


# --- in a run ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> tuple[FakeEngine, FakeRun]:
    engine = FakeEngine(tmp_path)
    run = engine.add_run(RUN, ranks=64)
    nodes = tuple(node(f"gpu{index:02}", *range(8 * index, 8 * index + 8)) for index in range(8))
    run.ranks = [msgspec.structs.replace(rank, node=f"gpu{rank.rank // 8:02}") for rank in run.ranks]
    run.view = msgspec.structs.replace(run.view, nodes=nodes)
    return engine, run


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("ascii_only", [False, True])
async def test_a_run_is_shown_by_node_and_as_a_table_again(
    run: tuple[FakeEngine, FakeRun], size: tuple[int, int], ascii_only: bool
):
    engine, fake = run
    fake.write(9, "hello from rank 9\n")
    app = RankdeckApp(engine, open_run=RUN, ascii=ascii_only)
    async with showing(app, "64/64 ranks", "v nodes", size=size) as pilot:
        fake.tick(3)
        text = await after(pilot, "v", "Ranks by node: throughput", "gpu07", "rank 0 on gpu00", "2500 tok/s")
        assert text.count("8/8") == 8
        assert text.isascii() or not ascii_only
        await after(pilot, "m", "Ranks by node: loss")
        await after(pilot, ("right", *["l"] * 8), "Log: rank 9 on gpu01", "hello from rank 9")
        await after(pilot, "v", "last line" if size[0] > 80 else "tok/s")
        assert app.screen.query_one(RankTable).cursor_rank == 9
        assert app.screen.query_one(RankTable).has_focus


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_use_of_gpus_is_seen_in_the_table_and_by_node(run: tuple[FakeEngine, FakeRun], size: tuple[int, int]):
    engine, fake = run
    async with showing(RankdeckApp(engine, open_run=RUN), "64/64 ranks", "v nodes", size=size) as pilot:
        fake.tick(3)
        await after(pilot, "v", "Ranks by node: throughput", "2500 tok/s")
        await after(pilot, "m m m", "Ranks by node: throughput")
        fake.ranks = [msgspec.structs.replace(rank, gpu=gpu(61 << 30, 80 << 30)) for rank in fake.ranks]
        fake.tick(4)
        await until_seen(pilot, "step 4")
        text = await after(pilot, "m m m", "Ranks by node: memory", "gpu 97%  mem 61 G of 80 G")
        assert text.count("▆▆▆▆▆▆▆▆") == 8
        await after(pilot, "m", "Ranks by node: throughput")
        text = await after(pilot, "v", " gpu   mem ")
        assert text.count(" 97%  61 G ") == text.count("● running") - 1


async def test_a_rank_that_fails_takes_the_cursor_there_too(run: tuple[FakeEngine, FakeRun]):
    engine, fake = run
    app = RankdeckApp(engine, open_run=RUN)
    async with showing(app, "64/64 ranks", size=(120, 40)) as pilot:
        await after(pilot, "v", "Ranks by node")
        fake.fail(42)
        text = await until_seen(pilot, "rank 42 on gpu05", "✖ failed", "Log: rank 42", "Why")
        assert "◐ 7/8" in text
        await pilot.press("enter")
        await until(pilot, lambda: not app.screen.query_one(NodeGrid).display, "the log takes the screen")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen.query_one(NodeGrid).has_focus, "the boxes are back")


async def test_a_node_that_is_away_says_so_with_the_time(run: tuple[FakeEngine, FakeRun]):
    engine, fake = run
    down = msgspec.structs.replace(fake.view.nodes[3], link="down", since=time.time() - 3600.0)
    fake.view = msgspec.structs.replace(fake.view, nodes=(*fake.view.nodes[:3], down, *fake.view.nodes[4:]))
    async with showing(RankdeckApp(engine, open_run=RUN), "64/64 ranks", size=(120, 40)) as pilot:
        text = await after(pilot, "v", "gpu03 ? 1 h")
        assert text.count("8/8") == 7
