"""Paints the run screen a few times a second where the run has changed, in the panes that are displayed."""

import time
from functools import partial

from textual.widgets import Static

from engine.core.metrics.bench import RECIPE
from engine.core.views.view import RunView
from tui.data.model import RunModel
from tui.data.off_loop import off_loop
from tui.data.run_link import RunLink
from tui.screens.base import DeckScreen
from tui.screens.run_acts import RunActs
from tui.screens.run_logs import RunLogs
from tui.screens.run_panes import RunPanes
from tui.screens.run_ranks import RunRanks
from tui.text.cells import plain_line
from tui.text.run import events_text, why_text
from tui.widgets.bench_pane import BenchPane
from tui.widgets.headers import RunHeader
from tui.widgets.rank_table import RankTable
from tui.widgets.run_charts import RunCharts
from tui.widgets.text_pane import TextPane

PAINT_HZ = 4  # table and header: numbers that change faster can't be read

LOG_HZ = 8
CHART_HZ = 1


class RunPainter:
    """Paints the parts of a run. A screen that is covered by another one paints nothing."""

    def __init__(
        self, screen: DeckScreen, link: RunLink, model: RunModel, parts: tuple[RunRanks, RunLogs, RunPanes, RunActs]
    ) -> None:
        self._screen, self._link, self._model = screen, link, model
        self._ranks, self._logs, self._panes, self._acts = parts
        self._painted: dict[str, object] = {}
        self._news = ""  # what is new since the last run that ended well

    def start(self) -> None:
        """Paints from now on, less often where the line has little bandwidth."""
        slow, every = self._screen.deck.slow, self._screen.set_interval
        every(1.0 if slow else 1 / PAINT_HZ, self.paint, name="paint")
        every(1.0 if slow else 1 / LOG_HZ, self._poll_log, name="poll")
        every(2.0 if slow else 1 / CHART_HZ, self._paint_chart, name="paint chart")
        every(2.0 if slow else 1 / CHART_HZ, self._poll_results, name="poll results")

    def paint_all(self) -> None:
        """Paints the panes that are displayed without waiting for their timers."""
        self.paint()
        self._paint_chart()
        self._poll_results()

    def show_banner(self, text: str) -> None:
        if self._painted.get("banner", "") != text:
            self._painted["banner"] = text
            banner = self._screen.query_one("#banner", Static)
            banner.update(plain_line(text))
            banner.display = bool(text)

    @property
    def measures(self) -> bool:
        return self._model.run is not None and self._model.run.program == RECIPE

    def paint(self) -> None:
        """Paints header, ranks, events and explanation where they have changed."""
        model, screen, panes = self._model, self._screen, self._panes
        if not screen.is_seen or (run := model.run) is None:
            return
        now = time.time()
        self._acts.update_question()
        several = sum(one.name == run.name for one in screen.deck.known_runs) > 1
        screen.query_one(RunHeader).show(model.header(now, self._link.run if several else run.name))
        # Ages move by themselves; once a second is enough for them. Ranks without a cursor have none for the log either.
        seen = model.revision, int(now), self._ranks.by_node
        if (self._ranks.shown.display or self._ranks.rank is None) and self._changed("table", seen):
            self._ranks.paint(now)
        if run.failure is not None and self._changed("news", run.attempt):
            screen.begin(self._read_news, "news", exclusive=True)
        if self._changed("failure", (run.failure, run.restart, run.stall, self._news)):
            self._show_failure(run)
        if self._changed("world", model.world_size):
            screen.query_one(RankTable).styles.height = model.world_size + 3
        if self._changed("attempt", run.attempt):
            self._logs.show()
        if self._changed("measures", self.measures) and self.measures and panes.pane == "log":
            panes.pane = "bench"  # the log says no more than its table
            panes.arrange()
            self._poll_results()
        if self._changed("valid", (run.restart_kind, run.state, run.activity)):
            screen.refresh_bindings()
        events = screen.query_one("#events", TextPane)
        if events.display and self._changed("events", (model.snapshots, model.newest_event)):
            events.show_text(partial(events_text, list(model.events), units=screen.deck.units))

    def _changed(self, what: str, value: object) -> bool:
        if self._painted.get(what, self) == value:
            return False
        self._painted[what] = value
        return True

    def _paint_chart(self) -> None:
        charts, model, rank = self._screen.query_one(RunCharts), self._model, self._ranks.rank
        if self._screen.is_seen and charts.display and self._changed("chart", (model.points, model.snapshots, rank)):
            charts.show_run(model, rank)

    def _poll_log(self) -> None:
        if self._screen.is_seen and self._logs.view.display:
            self._logs.view.poll()

    def _poll_results(self) -> None:
        if self._screen.is_seen and self._screen.query_one(BenchPane).display and self._link.client is not None:
            self._screen.begin(self._read_results, "results", exclusive=True)

    async def _read_results(self) -> None:
        client, revision = self._link.client, self._model.revision
        if client is not None and self._painted.get("results") != revision:
            results = await off_loop(client.results, self._model.attempt)
            self._screen.query_one(BenchPane).show_results(results)
            self._painted["results"] = revision

    async def _read_news(self) -> None:
        client = self._link.client
        self._news = await off_loop(client.news) if client is not None else ""

    def _show_failure(self, run: RunView) -> None:
        """Shows or hides the explanation; a new root cause moves the cursor to its rank once."""
        deck = self._screen.deck
        if run.failure is not None or run.stall is not None:
            text = partial(why_text, run, ascii=deck.ascii, keymap=deck.keymap, units=deck.units, news=self._news)
            title = "Why" if run.failure else "Stalled"
            self._screen.query_one("#why", TextPane).show_text(text, title=title)
        if run.failure is not None:
            self._go_to_cause(run, run.failure.rank)
        elif run.stall is not None and run.stall.late:
            self._go_to_cause(run, run.stall.late[0])
        self._panes.arrange()

    def _go_to_cause(self, run: RunView, rank: int | None) -> None:
        is_new = self._changed("cause", (run.attempt, run.generation, rank))
        if is_new and rank is not None and self._panes.zoom is None:
            self._ranks.move_cursor(rank)
