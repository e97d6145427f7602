"""The table of ranks."""

import math
from itertools import product
from typing import Any

import pytest
from textual.geometry import Region

from engine.core.metrics.resources import GpuUse, ProcessUse
from engine.core.metrics.series import Series
from engine.core.metrics.stretches import Late
from engine.core.run.state import RankWord
from tests.support import entries, from_table
from tests.tui.hostile import CORPUS
from tests.tui.table_app import TableApp, row
from tests.tui.waiting import SIZES, lines, until
from tui.data.model import Row
from tui.data.rank_order import Order, arranged
from tui.text.rank_columns import LEAST_NOTE, Columns, row_parts, without_time
from tui.widgets.rank_table import RankTable

EVERY_STATE: list[RankWord] = ["running", "starting", "exited", "failed", "stopped", "lost"]


def one_of_each() -> list[Row]:
    rows = [row(rank, state) for rank, state in enumerate(EVERY_STATE)]
    rows[3] = row(3, "failed", step=811, loss=None, throughput=None, note="SIGKILL")
    rows[5] = row(5, "lost", node="gpu02")
    return rows


@pytest.mark.parametrize("width", [60, 80, 120, 200])
async def test_every_row_has_state_step_numbers_and_the_note_of_a_failure(width):
    app = TableApp(one_of_each())
    async with app.run_test(size=(width, 12)) as pilot:
        await pilot.pause()
        shown = lines(app.table)
        for line, glyph, word in zip(shown[1:], "●◌✔✖■?", EVERY_STATE, strict=False):
            assert f"{glyph} {word}" in line
            assert "gpu0" in line
        assert " 811 " in shown[4]
        assert "SIGKILL" in shown[4]
        assert "2571" in shown[1]
        assert "1.61" in shown[1]
        assert ("█" in shown[1]) == (width >= 80)
        assert ("local" in shown[0]) == (width >= 120)


async def test_a_row_at_120_columns_looks_like_this():
    app = TableApp(
        [row(0), row(1, "failed", node="gpu02", loss=math.nan, throughput=None, note="exit 1: ValueError: x")]
    )
    async with app.run_test(size=(120, 6)) as pilot:
        await pilot.pause()
        header, first, second, *_ = lines(app.table)
        assert header.split() == ["rank", "node", "local", "state", "step", "tok/s", "loss", "seen", "last", "line"]
        assert first.startswith("▸   0 gpu01     0 ● running      812    2571 ")
        assert first.endswith("step 812 loss 1.613")
        assert "    1 s step" in first
        assert second.startswith("    1 gpu02     1 ✖ failed       812       –")  # noqa: RUF001
        assert "     nan " in second
        assert second.endswith("exit 1: ValueError: x")


async def test_ranks_of_one_node_need_no_column_for_it_and_a_time_stamp_does_not_fill_the_last_line():
    app = TableApp([row(rank, last_line="[2026-11-24 12:41:07,123] INFO: step 812", unit="samples") for rank in (0, 1)])
    async with app.run_test(size=(80, 5)) as pilot:
        await pilot.pause()
        header, first, *_ = lines(app.table)
        assert header.split() == ["rank", "state", "step", "per", "s", "loss", "last", "line"]
        assert "gpu01" not in first
        assert first.endswith("INFO: step 812")


@from_table
def test_the_time_before_a_line_is_left_out_of_the_table(line: str, shown: str):
    assert without_time(line) == shown


GIB = 1 << 30


def with_gpus() -> list[Row]:
    """Ranks that use their GPUs, one that has ended, and two whose driver does not say everything."""
    uses = [(97, 61 * GIB), (5, 5 * GIB // 4), None, (None, 700 << 20), (100, None)]
    known = [use and GpuUse(utilisation=use[0], memory=use[1], memory_total=80 * GIB) for use in uses]
    rows = [row(rank, gpu=use) for rank, use in enumerate(known)]
    rows[2] = row(2, "failed", step=811, loss=None, throughput=None, note="SIGKILL")
    rows[4] = row(4, node="gpu02", gpu=known[4])
    return rows


@pytest.mark.parametrize(("rows", "golden"), [(one_of_each(), "golden_80"), (with_gpus(), "gpus_80")])
async def test_rows_at_80_columns_say_everything_essential(rows, golden):
    app = TableApp(rows)
    async with app.run_test(size=(80, 9 if golden == "golden_80" else 7)) as pilot:
        await pilot.pause()
        assert "\n".join(lines(app.table)) == entries("tui/rank_table", golden)


async def test_at_120_columns_gpus_stand_beside_everything_else():
    app = TableApp(with_gpus())
    async with app.run_test(size=(120, 7)) as pilot:
        await pilot.pause()
        header, first, _, failed, *_ = lines(app.table)
        assert header.split()[5:] == ["tok/s", "loss", "gpu", "mem", "seen", "last", "line"]
        assert "    1.61 █" in first
        assert "  97%  61 G    1 s step 812" in first
        assert failed.endswith("  –     –    1 s SIGKILL")  # noqa: RUF001
        for name in ("gpu", "mem"):
            end = header.index(name) + len(name)
            assert all(line[end - 1] != " " and line[end] == " " for line in lines(app.table)[1:6])


async def test_in_a_narrow_table_gpus_leave_before_the_note_of_a_failure_does():
    app = TableApp(with_gpus())
    async with app.run_test(size=(70, 7)) as pilot:
        await pilot.pause()
        assert "gpu " not in lines(app.table)[0]
        assert lines(app.table)[3].endswith("SIGKILL")


async def test_gpus_have_columns_from_when_they_are_known_on_and_not_before():
    app = TableApp([row(0)])
    async with app.run_test(size=(80, 4)) as pilot:
        await pilot.pause()
        assert " mem " not in lines(app.table)[0]
        app.table.set_rows(with_gpus()[:1], 101.0)
        assert " 97%  61 G " in lines(app.table)[1]
        app.table.set_rows([row(0, "starting")], 102.0)
        assert " mem " in lines(app.table)[0]


async def test_columns_do_not_dance_when_values_change():
    places = set()
    for value in (None, 0.0, 3.2e-7, 1.61, 99.95, 2571.0, 41_234.0, math.nan, math.inf):
        app = TableApp([row(0, step=1, throughput=value, loss=value)])
        async with app.run_test(size=(120, 4)) as pilot:
            await pilot.pause()
            places.add(app.table.render_line(1).text.index("step 1 loss"))
    assert len(places) == 1


async def test_ascii_draws_nothing_else():
    app = TableApp([*one_of_each(), row(6, last_line="x" * 300), with_gpus()[3]], ascii_only=True)
    async with app.run_test(size=(120, 12)) as pilot:
        await pilot.pause()
        assert all(line.isascii() for line in lines(app.table))
        assert "X failed" in lines(app.table)[4]


async def test_a_failed_row_is_styled_from_end_to_end():
    app = TableApp(one_of_each())
    async with app.run_test(size=(80, 9)) as pilot:
        await pilot.pause()
        ordinary = app.table.render_line(2)
        failed = app.table.render_line(4)
        papers = {segment.style.bgcolor for segment in failed if segment.style}
        assert len(papers) == 1
        assert papers != {segment.style.bgcolor for segment in ordinary if segment.style}
        assert all(segment.style and segment.style.bold for segment in failed)


async def test_trap_7_text_of_ranks_is_never_markup_nor_a_control_sequence():
    texts = [data[:5000].decode("utf-8", "surrogateescape") for data in CORPUS.values()]
    app = TableApp([row(rank, node=text, unit=text, note=text, last_line=text) for rank, text in enumerate(texts)])
    async with app.run_test(size=(120, 50)) as pilot:
        await pilot.pause()
        for line in lines(app.table):
            assert not any(ord(character) < 32 or 0x7F <= ord(character) <= 0x9F for character in line)
        assert any("[red]text" in line for line in lines(app.table))


async def test_trap_6_values_that_are_not_finite_are_shown_and_no_error():
    odd = Series(0, "loss")
    for step, value in enumerate((math.nan, math.inf, -math.inf)):
        odd.append(step, step, value)
    app = TableApp([Row(row(0, throughput=math.inf, loss=math.nan).view, odd, odd)])
    async with app.run_test(size=(120, 4)) as pilot:
        await pilot.pause()
        assert "×××" in lines(app.table)[1]  # noqa: RUF001
        assert " inf " in lines(app.table)[1]


@pytest.mark.parametrize("size", SIZES)
async def test_any_size_is_drawn(size):
    app = TableApp([*one_of_each(), *(row(rank) for rank in range(6, 100))])
    async with app.run_test(size=size) as pilot:
        await pilot.press("j", "G", "pageup", "g")
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "● running" in lines(app.table)[1]
        for y in range(app.table.size.height):
            assert app.table.render_line(y).cell_length == app.table.size.width - 1


@pytest.mark.parametrize("world_size", [1, 8, 1000, 100_000])
def test_columns_never_exceed_the_width(world_size):
    for width in range(20, 250):
        for node in (0, 5, 60):
            for gpus, usage, late in product((False, True), repeat=3):
                columns = Columns.fitted(width, world_size=world_size, node=node, gpus=gpus, usage=usage, late=late)
                assert all(value >= 0 for value in columns)
                if width >= 60:
                    assert columns.step
                    assert columns.loss
                    assert columns._used() + (columns.note + 1 if columns.note else 0) <= width
                assert not columns.cpu or (usage and columns.note >= LEAST_NOTE - 1)
                assert not columns.gpu or (gpus and columns.note >= LEAST_NOTE - 1)


async def test_a_wide_table_shows_what_processes_use_and_who_is_late_and_sorts_by_it():
    busy = ProcessUse(cpu=398, memory=1_300 << 20, read=3 << 20, written=1 << 20)
    idle = ProcessUse(cpu=1, memory=300 << 20, read=None, written=None)
    app = TableApp([row(0, process=idle), row(1, process=busy, late=Late(share=0.061, step_seconds=1.0)), row(2)])
    async with app.run_test(size=(140, 9)):
        head, *rows = lines(app.table)
        assert "  cpu   rss  io/s late " in head
        assert "    1% 300 M     –    – " in rows[0]  # noqa: RUF001
        assert "  398% 1.3 G 4.0 M   6% " in rows[1]
        assert "     –     –     –    – " in rows[2]  # noqa: RUF001
        for column in ("cpu", "rss", "late"):
            assert [one.view.rank for one in arranged(app.table._ranks.every, Order(column), "")] == [1, 0, 2]


async def test_keys_move_the_cursor():
    app = TableApp([row(rank) for rank in range(100)])
    async with app.run_test(size=(80, 11)) as pilot:
        places = []
        keys = ["j", "down", "k", "up", "pagedown", "ctrl+d", "ctrl+u", "pageup", "G", "g", "end", "home"]
        for key in keys:
            await pilot.press(key)
            places.append(app.table.cursor_rank)
        assert places == [1, 2, 1, 0, 9, 14, 9, 0, 99, 0, 99, 0]
        assert app.seen[-1] == ("moved", 0)


async def test_the_cursor_is_always_in_sight():
    app = TableApp([row(rank) for rank in range(100)])
    async with app.run_test(size=(80, 11)) as pilot:
        for key in ("G", "k", "pageup", "pageup", "g", "ctrl+d", "ctrl+d", "ctrl+d"):
            await pilot.press(key)
            await pilot.pause()
            assert [line for line in lines(app.table) if line.startswith("▸")], key
        assert lines(app.table)[0].startswith(" rank")


async def test_the_cursor_stays_on_its_rank():
    app = TableApp([row(rank) for rank in range(10)])
    async with app.run_test(size=(80, 20)) as pilot:
        app.table.move_cursor(7)
        await pilot.pause()
        app.table.set_rows([row(rank) for rank in reversed(range(10))], 102.0)
        assert [app.table.cursor_rank] == [7]
        app.table.set_rows([row(rank) for rank in range(3)], 102.0)
        await pilot.pause()
        assert [app.table.cursor_rank] == [2]
        assert app.seen[-1] == ("moved", 2)
        app.table.set_rows([], 103.0)
        assert [app.table.cursor_rank] == [None]
        await pilot.press("j", "enter", "G")


async def test_a_click_takes_the_cursor_and_a_click_on_it_chooses():
    app = TableApp([row(rank) for rank in range(10)])
    async with app.run_test(size=(80, 20)) as pilot:
        await pilot.click(RankTable, offset=(10, 4))
        assert app.seen[-1] == ("moved", 3)
        await pilot.click(RankTable, offset=(10, 4))
        assert app.seen[-1] == ("selected", 3)
        seen = list(app.seen)
        await pilot.click(RankTable, offset=(10, 0))
        await pilot.click(RankTable, offset=(10, 18))
        assert app.seen == seen


async def test_trap_8_only_lines_that_changed_are_repainted(monkeypatch):
    app = TableApp([row(rank) for rank in range(40)])
    async with app.run_test(size=(80, 30)) as pilot:
        await pilot.pause()
        regions: list[Region] = []
        monkeypatch.setattr(app.table, "refresh", lambda *found, **_: regions.extend(found))
        app.table.set_rows([row(rank) for rank in range(40)], 101.0)
        assert regions == []
        app.table.set_rows([row(rank, step=813 if rank in (4, 39) else 812) for rank in range(40)], 101.0)
        assert regions == [Region(0, 5, app.table.size.width - 1, 1)]


async def test_trap_8_ten_thousand_ranks_cost_what_the_visible_ones_cost(monkeypatch):
    app = TableApp([row(rank) for rank in range(10_000)])
    async with app.run_test(size=(120, 45)) as pilot:
        await pilot.pause()
        new = [row(rank, step=900) for rank in range(10_000)]
        made = 0

        def counted(*arguments: Any, **more: Any) -> object:
            nonlocal made
            made += 1
            return row_parts(*arguments, **more)

        monkeypatch.setattr("tui.widgets.rank_table.row_parts", counted)
        for step in range(10):
            app.table.set_rows(new, 102.0 + step)
            lines(app.table)
        assert 0 < made <= 10 * 4 * app.table.size.height
        await pilot.press("G")
        await pilot.pause()
        assert "9999" in lines(app.table)[-1]


async def test_a_theme_change_repaints_in_its_colours():
    app = TableApp(one_of_each())
    async with app.run_test(size=(80, 9)) as pilot:
        await pilot.pause()
        dark = app.table.render_line(4)
        app.theme = "textual-light"
        await until(pilot, lambda: app.table.render_line(4) != dark, "another colour")
