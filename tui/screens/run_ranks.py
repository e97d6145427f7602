"""The ranks on the run screen: as a table that is sorted and filtered, or as cells by node; the cursor on one of them, and its log."""

from __future__ import annotations

import time

from textual import on
from textual.widgets import Input

from tui.screens.run_acts import ActingScreen
from tui.text.rank_columns import RankRow
from tui.widgets.cursor_view import CursorView
from tui.widgets.node_grid import NodeGrid
from tui.widgets.rank_table import RankTable
from tui.widgets.run_log import RunLog


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

    # --- the log of the rank under the cursor ----------------------------------------------------------------------

    @on(CursorView.Moved)
    def _rank_highlighted(self) -> None:
        self.show_log()
        self.refresh_bindings()

    def show_log(self) -> None:
        """Shows the files of the rank under the cursor, or of all ranks, of this attempt."""
        rank = self.rank
        view = self.model.rank(rank)
        if self.link.client is not None and self.model.run is not None and rank is not None:
            node = view.node if view is not None else "?"
            self.query_one(RunLog).show_run(self.link.client, self.model.run, rank, node)

    def action_other_stream(self) -> None:
        self.query_one(RunLog).next_streams()
        self.show_log()

    def action_follow(self) -> None:
        self.query_one(RunLog).action_follow()

    @on(Input.Changed, "#search")
    def _search_changed(self, event: Input.Changed) -> None:
        self.query_one(RunLog).search(event.value)

    def action_next_match(self) -> None:
        self.query_one(RunLog).next_match()

    def action_previous_match(self) -> None:
        self.query_one(RunLog).previous_match()
