"""The ranks on the run screen: as a table that is sorted and filtered, or as cells by node; the cursor on one of them."""

import time

from tui.data.model import RunModel
from tui.screens.base import DeckScreen
from tui.widgets.node_grid import NodeGrid
from tui.widgets.rank_table import RankTable
from tui.widgets.search_line import SearchLine


class RunRanks:
    """The ranks of a run. `screen`: where they are. `model`: the run."""

    def __init__(self, screen: DeckScreen, model: RunModel) -> None:
        self._screen, self._model = screen, model
        self.by_node = False  # whether the ranks are shown by node, as cells, in place of the table
        words = "show only ranks with these words: failed  gpu01  8-15  !running"
        self.line = SearchLine("filter", words, changed=self._filter, done=self._done)

    @property
    def table(self) -> RankTable:
        return self._screen.query_one(RankTable)

    @property
    def shown(self) -> RankTable | NodeGrid:
        return self._screen.query_one(NodeGrid) if self.by_node else self.table

    @property
    def rank(self) -> int | None:
        return self.shown.cursor_rank

    def move_cursor(self, rank: int | None) -> None:
        if rank is not None:
            self.shown.move_cursor(rank)

    def paint(self, now: float) -> None:
        """Shows the data of the ranks. `now`: seconds since the epoch."""
        model, ranks = self._model, self.shown
        if model.run is None:
            return
        if isinstance(ranks, RankTable):
            ranks.set_rows(model.rows(), now)
        else:
            views = {row.view.rank: row.view for row in model.rows()}
            ranks.show_nodes(model.run.nodes, views, model.away(now))

    def close_filter(self) -> None:
        self.line.close()
        self.table.filter("")
        self._screen.set_focus(self.shown)

    def _filter(self, words: str) -> None:
        self.table.filter(words)
        self.paint(time.time())

    def _done(self, words: str) -> None:
        if words.strip():
            self._screen.set_focus(self.shown)
        else:
            self.close_filter()
