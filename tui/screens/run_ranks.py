"""The ranks on the run screen: as a table that is sorted and filtered, or as cells by node; the cursor on one of them."""

from __future__ import annotations

import time

from textual import on
from textual.widgets import Input

from tui.screens.run_acts import ActingScreen
from tui.text.rank_columns import RankRow
from tui.widgets.node_grid import NodeGrid
from tui.widgets.rank_table import RankTable


class SearchLine(Input):
    """Where a search or a filter is typed; esc closes it."""

    def __init__(self, id: str, placeholder: str) -> None:
        super().__init__(compact=True, placeholder=placeholder, id=id, classes="search-line")
        self.cursor_blink = False
        self.display = False


class RanksScreen(ActingScreen):
    """A screen with the ranks of a run."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.by_node = False
        """Whether the ranks are shown by node, as cells, in place of the table."""

    @property
    def ranks(self) -> RankTable | NodeGrid:
        """The widget that shows the ranks."""
        return self.query_one(NodeGrid) if self.by_node else self.query_one(RankTable)

    @property
    def rank(self) -> int | None:
        """The rank under the cursor; None where a filter shows none."""
        return self.ranks.cursor_rank

    def move_cursor(self, rank: int | None) -> None:
        """Puts the cursor on a rank, if it is shown."""
        if rank is not None:
            self.ranks.move_cursor(rank)

    def paint_ranks(self, now: float) -> None:
        """Shows what is known of the ranks. `now`: seconds since the epoch."""
        model, ranks = self.model, self.ranks
        if not ranks.display or model.run is None:
            return
        if isinstance(ranks, RankTable):
            ranks.set_rows([RankRow(*row) for row in model.rows()], now)
        else:
            views = {row.view.rank: row.view for row in model.rows()}
            ranks.show_nodes(model.run.nodes, views, model.away(now))

    # --- the filter of the table -------------------------------------------------------------------------------------

    def open_filter(self) -> None:
        """Opens the line in which words are typed that the shown ranks have."""
        line = self.query_one("#filter", SearchLine)
        line.display = True
        self.set_focus(line)

    def close_filter(self) -> None:
        """Shows all ranks again."""
        line = self.query_one("#filter", SearchLine)
        line.display = False
        line.value = ""
        self.query_one(RankTable).filter("")
        self.set_focus(self.ranks)

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        self.query_one(RankTable).filter(event.value)
        self.paint_ranks(time.time())

    @on(Input.Submitted, "#filter")
    def _filter_done(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.set_focus(self.ranks)
        else:
            self.close_filter()
