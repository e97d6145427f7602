"""The panes of the run screen: which are shown, how keys go from one to another, and the lines for a search or a filter of the log."""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from textual.widget import Widget

from engine.core.metrics.chart_svg import chart_svg
from engine.core.settings import LowerPane
from tui.data.log.saving import save_text
from tui.data.model import RunModel
from tui.keys import first_key
from tui.screens.base import DeckScreen
from tui.screens.confirm import AskScreen
from tui.screens.run_logs import RunLogs, write_file
from tui.screens.run_ranks import RunRanks
from tui.text.cells import plain_line
from tui.widgets.bench_pane import BenchPane
from tui.widgets.node_grid import NodeGrid
from tui.widgets.rank_table import RankTable
from tui.widgets.run_charts import RunCharts
from tui.widgets.search_line import SearchLine

_NO_NAME = re.compile(r"[^\w.-]", re.ASCII)  # characters of a metric's name that can't be in the name of a file

Pane = Literal["ranks", "chart", "log", "events", "bench", "why"]
LOWER: tuple[Pane, ...] = ("chart", "log", "events", "bench")  # panes of which one is shown below the ranks
BESIDE: tuple[Pane, ...] = ("chart", "log")  # panes that a broad screen shows beside each other


class RunPanes:
    """The ranks of a run, one pane of several below them, and beside it why the run failed. `paint`: paints the panes that are shown
    without waiting for their timers."""

    def __init__(
        self, screen: DeckScreen, model: RunModel, ranks: RunRanks, logs: RunLogs, paint: Callable[[], None]
    ) -> None:
        self._screen, self._model, self._ranks, self._logs, self._paint = screen, model, ranks, logs, paint
        self.pane: Pane = "log"  # the one below the ranks
        self.zoom: Pane | None = None  # the one that is shown on the whole screen
        self._chosen: Pane = (
            "ranks"  # where the keys went last; a tiny screen shows only this one below the ranks, or why
        )
        keymap = screen.deck.keymap
        on, back = (first_key(f"run.{id}", keymap) for id in ("next", "previous"))
        words = f"search the log: a regular expression; {on} and {back} go from match to match"
        self.search = SearchLine("search", words, changed=lambda text: logs.view.search(text), done=self._done)
        words = "show lines that match; ! before a word hides its lines: loss & !eval"
        self.filter = SearchLine("log-filter", words, changed=lambda text: logs.view.filter(text), done=self._done)

    def widget(self, name: str) -> Widget:
        return self._screen.query_one("#nodes" if name == "ranks" and self._ranks.by_node else f"#{name}")

    @property
    def has_explanation(self) -> bool:
        """Whether there is something to say of why the run has failed or hangs."""
        run = self._model.run
        return run is not None and (run.failure is not None or run.stall is not None)

    @property
    def can_go_back(self) -> bool:
        is_sought = self.search.display or self.filter.display or self._logs.view.finder.pattern is not None
        has_focus = self.widget("ranks").has_focus
        return is_sought or self._ranks.line.display or self.zoom is not None or not has_focus

    def arrange(self) -> None:
        """Shows the chosen panes and no others: a pane that is not displayed costs nothing."""
        screen = self._screen
        if not self.has_explanation and "why" in (self.zoom, self.pane):
            self.zoom, self.pane = None, "log"
        for widget in (screen.query_one(RankTable), screen.query_one(NodeGrid)):
            widget.display = self.zoom is None and widget is self.widget("ranks")
        shown = BESIDE if self.pane in BESIDE and self.zoom is None and screen.has_class("-broad") else (self.pane,)
        has_why = self.has_explanation and self.zoom in (None, "why")
        if has_why and self.zoom is None and screen.has_class("-tiny"):
            shown, has_why = (shown, False) if self._chosen in LOWER else ((), True)
        for name in LOWER:
            self.widget(name).display = name in shown and self.zoom in (None, name)
        self.widget("why").display = has_why
        screen.set_class(self.zoom == "why", "-why-only")
        if screen.focused is not None and not screen.focused.display:
            screen.set_focus(self.widget(self.zoom or "ranks"))  # at once: the next key continues from here
        screen.refresh_bindings()

    # --- keys --------------------------------------------------------------------------------------------------------

    def action_pane(self, name: Pane) -> None:
        """Goes to a pane; in the pane itself, switches it between full screen and its place."""
        here = self.widget(name).has_focus
        if name == "ranks" or (self.zoom is not None and self.zoom != name):
            self.zoom = None
        elif here:
            self.zoom = None if self.zoom == name else name
        self._chosen = name
        if name in LOWER:
            self.pane = name
        if name in get_args(LowerPane):
            self._screen.deck.keep_look(pane=name)
        self.arrange()
        self._paint()
        # Now, unlike `Widget.focus`: a second press of the key must find the focus where the first one put it.
        self._screen.set_focus(self.widget(name))

    def action_by_node(self) -> None:
        ranks = self._ranks
        rank = ranks.rank
        ranks.by_node, self.zoom = not ranks.by_node, None
        self.arrange()
        ranks.paint(time.time())
        ranks.move_cursor(rank)
        self._paint()
        self._screen.call_after_refresh(lambda: ranks.move_cursor(ranks.rank))  # into view, once there is a size
        self._screen.set_focus(self.widget("ranks"))

    def action_next_curves(self) -> None:
        self._screen.query_one(BenchPane).next_curves()

    def action_open_log(self) -> None:
        self._logs.choice.scope = "rank"
        self._logs.show()
        self.pane = self.zoom = "log"
        self.arrange()
        self._screen.set_focus(self._logs.view)

    def action_all_ranks(self) -> None:
        run = self._model.run
        self._logs.choice.next_scope(nodes=run is not None and len(run.nodes) > 1)
        self._logs.show()
        if not self._logs.view.display:
            self.action_pane("log")

    def action_save_chart(self) -> None:
        """Asks for a file, and writes the first chart that is shown into it."""
        run, metric = self._model.run, self._screen.query_one(RunCharts).metric
        if run is None:
            return
        series, begin = self._model.series.dump(), run.launched_at

        def answered(name: str | None) -> None:
            if not name:
                return
            path = Path(name).expanduser().absolute()
            if (svg := chart_svg(series, metric, begin)) is None:
                self._screen.say(f"there are no values of {plain_line(metric)} yet", error=True)
            else:
                writing = partial(write_file, self._screen, path, lambda: save_text(path, svg) and 1, "chart")
                self._screen.begin(writing, "save")

        name = f"{run.run}-{_NO_NAME.sub('_', metric)}.svg"
        detail = f"Writes {plain_line(metric)} as SVG."
        self._screen.app.push_screen(AskScreen("Save the chart as", name, detail), answered)

    # --- the lines for words -----------------------------------------------------------------------------------------

    def action_search(self) -> None:
        if self._ranks.table.has_focus:
            self._ranks.line.open()
        else:
            self._open(self.search)

    def action_filter_log(self) -> None:
        self._open(self.filter)

    def _open(self, line: SearchLine) -> None:
        self.pane = self._chosen = "log"
        self.zoom = None if self.zoom != "log" else "log"
        self.arrange()
        line.open()

    def _done(self, words: str) -> None:
        if words:
            self._screen.set_focus(self._logs.view)
        else:
            self.action_back()

    def action_back(self) -> None:
        """Goes one step back: out of a line for words, out of a search or a filter, out of the full screen, to the ranks."""
        log, words = self._logs.view, self._ranks.line
        is_sought = self.search.display or log.finder.found is not None
        is_near = words.has_focus or self._ranks.shown.has_focus
        if words.display and (is_near or not (self.search.display or self.zoom)):
            self._ranks.close_filter()
        elif self.filter.has_focus or (not is_sought and log.is_filtered):
            self._close(self.filter)
            log.filter("", 0)
        elif is_sought:
            self._close(self.search)
            log.search("")
        else:
            self.zoom, self._chosen = None, "ranks"
            self.arrange()
            self._screen.set_focus(self.widget("ranks"))
        self._screen.refresh_bindings()

    def _close(self, line: SearchLine) -> None:
        line.close()
        self._screen.set_focus(self.widget("log" if self.widget("log").display else "ranks"))
