"""The panes of the run screen: which are shown, how keys go from one to another, and the lines for a search or a filter of the log."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Literal, get_args

from textual import on
from textual.widget import Widget
from textual.widgets import Input

from engine.core.metrics.chart_svg import chart_svg
from engine.core.settings import LowerPane
from tui.data.log_saving import save_text
from tui.screens.confirm import AskScreen
from tui.screens.run_logs import LogScreen
from tui.screens.run_ranks import SearchLine
from tui.text.cells import plain_line
from tui.widgets.bench_pane import BenchPane
from tui.widgets.cursor_view import CursorView
from tui.widgets.node_grid import NodeGrid
from tui.widgets.rank_table import RankTable
from tui.widgets.run_charts import RunCharts
from tui.widgets.run_log import RunLog

_NO_NAME = re.compile(r"[^\w.-]", re.ASCII)
"""Characters of a metric's name that do not become part of a file's."""

Pane = Literal["ranks", "chart", "log", "events", "bench", "why"]
LOWER: tuple[Pane, ...] = ("chart", "log", "events", "bench")
"""Panes of which one is shown below the ranks."""


class PanesScreen(LogScreen):
    """A screen with the ranks of a run, one pane of several below them, and why it failed beside it.

    Args:
        run: the id of the run.
    """

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.pane: Pane = "log"
        self.zoom: Pane | None = None

    def paint_now(self) -> None:
        """Paints the panes that are shown without waiting for their timers."""

    def _widget(self, name: str) -> Widget:
        return self.query_one("#nodes" if name == "ranks" and self.by_node else f"#{name}")

    def _arrange(self) -> None:
        """Shows the chosen panes and no others: a pane that is not displayed costs nothing."""
        run = self.model.run
        failed = run is not None and (run.failure is not None or run.stall is not None)
        if not failed and "why" in (self.zoom, self.pane):
            self.zoom, self.pane = None, "log"
        for widget in (self.query_one(RankTable), self.query_one(NodeGrid)):
            widget.display = self.zoom is None and widget is self._widget("ranks")
        for name in LOWER:
            self._widget(name).display = self.pane == name and self.zoom in (None, name)
        self._widget("why").display = failed and self.zoom in (None, "why")
        self.set_class(self.zoom == "why", "-why-only")
        if self.focused is not None and not self.focused.display:
            self.set_focus(self._widget(self.zoom or "ranks"))  # now: a key pressed meanwhile moves on from here
        self.refresh_bindings()

    def action_save_chart(self) -> None:
        """Asks for a file, and writes the first chart that is shown into it."""
        run, metric = self.model.run, self.query_one(RunCharts).metric
        if run is None:
            return
        series, begin = self.model.series.dump(), run.launched_at

        def answered(name: str | None) -> None:
            if not name:
                return
            path = Path(name).expanduser().absolute()
            if (svg := chart_svg(series, metric, begin)) is None:
                self.say(f"there are no values of {plain_line(metric)} yet", error=True)
            else:
                self.write_file(path, lambda: save_text(path, svg) and 1, "chart")

        name = f"{self.run_id}-{_NO_NAME.sub('_', metric)}.svg"
        self.app.push_screen(AskScreen("Save the chart as", name, f"Writes {plain_line(metric)} as SVG."), answered)

    def action_pane(self, name: Pane) -> None:
        """Goes to a pane; in the pane itself, switches it between full screen and its place."""
        here = self._widget(name).has_focus
        if name == "ranks" or (self.zoom is not None and self.zoom != name):
            self.zoom = None
        elif here:
            self.zoom = None if self.zoom == name else name
        if name in LOWER:
            self.pane = name
        if name in get_args(LowerPane):
            self.deck.keep_look(pane=name)
        self._arrange()
        self.paint_now()
        # Now, unlike `Widget.focus`: a second press of the key must find the focus where the first one put it.
        self.set_focus(self._widget(name))

    def action_next_curves(self) -> None:
        self.query_one(BenchPane).next_curves()

    def action_by_node(self) -> None:
        rank = self.rank
        self.by_node, self.zoom = not self.by_node, None
        self._arrange()
        self.paint_ranks(time.time())
        self.move_cursor(rank)
        self.paint_now()
        self.call_after_refresh(lambda: self.move_cursor(self.rank))  # into view, once there is a size
        self.set_focus(self._widget("ranks"))

    def action_open_log(self) -> None:
        self.query_one(RunLog).scope = "rank"
        self.show_log()
        self.pane = self.zoom = "log"
        self._arrange()
        self.set_focus(self.query_one(RunLog))

    @on(CursorView.Selected)
    def _rank_selected(self) -> None:
        self.action_open_log()

    def action_back(self) -> None:
        search, words, log = self.query_one("#search"), self.query_one("#filter", Input), self.query_one(RunLog)
        if words.display and (words.has_focus or self.ranks.has_focus or not (search.display or self.zoom)):
            self.close_filter()
        elif self.query_one("#log-filter").has_focus or (not (search.display or log.found) and log.is_filtered):
            self._close_line("#log-filter")
            log.filter("", 0)
        elif search.display or log.found:
            self._close_line("#search")
            log.search("")
        else:
            self.zoom = None
            self._arrange()
            self.set_focus(self._widget("ranks"))
        self.refresh_bindings()

    def _close_line(self, line: str) -> None:
        found = self.query_one(line, SearchLine)
        found.display = False
        found.value = ""
        self.set_focus(self._widget("log" if self._widget("log").display else "ranks"))

    # --- the log ------------------------------------------------------------------------------------------------------

    def action_all_ranks(self) -> None:
        log = self.query_one(RunLog)
        log.next_scope(nodes=self.model.run is not None and len(self.model.run.nodes) > 1)
        self.show_log()
        if not log.display:
            self.action_pane("log")

    def action_search(self) -> None:
        if self.query_one(RankTable).has_focus:
            self.open_filter()
            return
        self._open_line("#search")

    def action_filter_log(self) -> None:
        self._open_line("#log-filter")

    def _open_line(self, line: str) -> None:
        self.pane = "log"
        self.zoom = None if self.zoom != "log" else "log"
        self._arrange()
        found = self.query_one(line, SearchLine)
        found.display = True
        self.set_focus(found)

    @on(Input.Submitted, "#search")
    @on(Input.Submitted, "#log-filter")
    def _search_done(self, event: Input.Submitted) -> None:
        if event.value:
            self.set_focus(self.query_one(RunLog))
        else:
            self.action_back()
