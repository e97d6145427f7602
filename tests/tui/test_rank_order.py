"""The order of the ranks in their table, and its filter."""

import math

import pytest

from engine.core.metrics.resources import GpuUse
from tests.support import from_table
from tests.tui.table_app import TableApp, row
from tests.tui.waiting import lines
from tui.data.model import Row
from tui.data.rank_order import COLUMNS, ORDERS, Column, Order, arranged, matches
from tui.text.rank_columns import with_arrow
from tui.widgets.rank_table import RankTable


def ranks(order: Order, rows: list[Row], query: str = "") -> list[int]:
    return [row.view.rank for row in arranged(rows, order, query)]


def gpu(utilisation: int | None, memory: int | None) -> GpuUse:
    return GpuUse(utilisation=utilisation, memory=memory, memory_total=8 << 30)


def some() -> list[Row]:
    return [
        row(0, step=10, throughput=30.0, loss=1.0, seen=90.0, gpu=gpu(50, 3 << 30)),
        row(1, "exited", step=12, throughput=None, loss=3.0, seen=99.0),
        row(2, "failed", step=10, throughput=20.0, loss=math.nan, seen=80.0, note="SIGKILL"),
        row(3, "starting", step=None, throughput=None, loss=None, seen=None, gpu=gpu(None, 5 << 30)),
        row(4, "lost", step=9, throughput=25.0, loss=2.0, node="gpu02", gpu=gpu(5, None)),
    ]


@from_table
def test_what_needs_attention_comes_first_and_what_is_unknown_last(column: Column, expected: list[int]):
    assert ranks(Order(column), some()) == expected


def test_the_reversed_order_keeps_unknown_values_last():
    assert ranks(Order("throughput", reverse=True), some()) == [0, 4, 2, 1, 3]
    assert ranks(Order(reverse=True), some()) == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_says_its_order_in_words(column: Column):
    words = {Order(column).words, Order(column, reverse=True).words}
    assert len(words) == 2
    assert Order(column, reverse=True).words.startswith(f"by {column}, ")
    assert Order(column).is_rising != Order(column, reverse=True).is_rising


@from_table
def test_a_filter_shows_ranks_that_have_every_word(query: str, expected: list[int]):
    assert ranks(Order(), some(), query) == expected


def test_the_newest_line_and_what_a_rank_does_can_be_sought():
    assert matches(row(0, last_line="epoch 3 done").view, ["epoch"])
    assert matches(row(0, aside="validation 1/4", last_line="x").view, ["validation"])


def test_the_arrow_stands_before_the_word():
    assert with_arrow("    loss      ", rising=False, ascii=False) == "   ▼loss      "
    assert with_arrow(" rank", rising=True, ascii=True) == "^rank"


async def test_keys_and_clicks_sort_and_the_cursor_stays_on_its_rank():
    app = TableApp(some())
    async with app.run_test(size=(120, 12)) as pilot:
        app.table.move_cursor(4)
        await pilot.press("O")
        await pilot.pause()
        shown = lines(app.table)
        assert [line.split()[0] for line in shown[1:3]] == ["2", "▸"]
        assert "▲state" in shown[0]
        assert app.table.cursor_rank == 4
        assert str(app.table.border_title) == "Ranks: by state, failed first"
        loss = lines(app.table)[0].index("loss")
        await pilot.click(RankTable, offset=(loss, 0))
        assert "▼loss" in lines(app.table)[0]
        await pilot.click(RankTable, offset=(loss, 0))
        assert "▲loss" in lines(app.table)[0]
        await pilot.press("greater_than_sign", "R")
        assert "by gpu, busiest first" in str(app.table.border_title)
        await pilot.press("less_than_sign", "less_than_sign")
        assert "throughput" in str(app.table.border_title)
        await pilot.press("O")
        assert str(app.table.border_title) == "Ranks"
        assert app.table.cursor_rank == 4


async def test_rows_change_places_at_most_once_a_second():
    app = TableApp([row(0, throughput=1.0), row(1, throughput=2.0)])
    async with app.run_test(size=(120, 12)):
        app.table.sort(Order("throughput"))
        swapped = [row(0, throughput=2.0), row(1, throughput=1.0)]
        app.table.set_rows(swapped, 101.5)
        assert [line.split()[0] for line in lines(app.table)[1:3]] == ["▸", "1"]
        app.table.set_rows(swapped, 102.0)
        assert [line.split()[0] for line in lines(app.table)[1:3]] == ["1", "▸"]


async def test_the_next_failed_rank_is_one_key_away_and_a_filter_can_be_empty():
    app = TableApp(some())
    async with app.run_test(size=(80, 12)) as pilot:
        found = []
        for _ in range(3):
            await pilot.press("e")
            found.append(app.table.cursor_rank)
        assert found == [2, 4, 2]
        app.table.filter("nothing")
        assert app.table.cursor_rank is None
        assert "No rank matches" in lines(app.table)[1]
        assert str(app.table.border_title) == "Ranks: 0 of 5 match 'nothing'"
        await pilot.press("e", "j", "O", "enter")
        app.table.filter("")
        assert app.table.cursor_rank == 2, "the first by state"


def test_one_key_goes_through_three_orders():
    assert [order.words for order in ORDERS] == ["", "by state, failed first", "by step, slowest first"]


def test_ranks_that_hang_or_lag_come_after_those_that_failed():
    marked = [row(0), row(1, health="slow"), row(2, "failed"), row(3, health="stalled"), row(4, "exited", health="nan")]
    assert ranks(Order("state"), marked) == [2, 3, 1, 0, 4]
    assert ranks(Order(), marked, "stalled") == [3]
