"""An app that has nothing but the table of ranks, and rows for it."""

from collections.abc import Sequence
from typing import Any

from textual.app import App, ComposeResult

from engine.core.metrics.series import Series
from engine.core.run.state import RankWord
from engine.core.views.view import RankView
from tui.data.model import Row
from tui.theme import CSS
from tui.widgets.rank_table import RankTable


def row(rank: int, state: RankWord = "running", *, step: int | None = 812, **more: Any) -> Row:
    fields: dict[str, Any] = {
        "rank": rank, "node": f"gpu{rank // 8 + 1:02}", "local_rank": rank % 8, "pid": 1, "state": state, "exit": None,
        "attempt": 1, "generation": 1, "step": step, "loss": 1.613, "throughput": 2571.0, "unit": "tok", "seen": 100.0,
        "last_line": f"step {step} loss 1.613",
    }  # fmt: skip
    rising, falling = Series(rank, "throughput"), Series(rank, "loss")
    for index in range(20):
        rising.append(index, index, 1.0 + index / 10)
        falling.append(index, index, 3.0 - index / 10)
    return Row(RankView(**(fields | more)), rising, falling)


class TableApp(App[None]):
    CSS_PATH = CSS

    def __init__(self, rows: Sequence[Row] = (), *, ascii_only: bool = False) -> None:
        super().__init__()
        self.rows = rows
        self.table = RankTable(ascii=ascii_only)
        self.seen: list[tuple[str, int | None]] = []

    def compose(self) -> ComposeResult:
        yield self.table

    def on_mount(self) -> None:
        self.table.set_rows(self.rows, 101.0)
        self.table.focus()

    def keep_look(self, **fields: object) -> None:
        """The table is not shown again."""

    def on_cursor_moved(self) -> None:
        self.seen.append(("moved", self.table.cursor_rank))

    def on_cursor_chosen(self) -> None:
        self.seen.append(("selected", self.table.cursor_rank))
