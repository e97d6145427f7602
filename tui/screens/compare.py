"""Runs side by side: curves over each other, results, and what differs between them."""

import itertools
from functools import partial

from msgspec.structs import replace
from textual import work
from textual.app import ComposeResult

from engine.client.protocols import Compared
from engine.core.errors import RankdeckError
from engine.core.metrics.resources import RESOURCES
from engine.core.metrics.series import Series, overlay
from engine.core.numbers import DAY_AND_TIME, clock
from engine.core.run.state import ENDED_WORDS
from engine.core.views.comparison import Topic, code_difference, compare
from tui.data.curves import Look
from tui.data.off_loop import off_loop
from tui.keys import bindings
from tui.screens.base import DeckScreen
from tui.text.cells import plain_line
from tui.text.compare import DrawnRun, code_text, compare_text, labels_of
from tui.text.lines import error_text
from tui.text.plot import drawn_as, rgb
from tui.widgets.chart import Chart
from tui.widgets.headers import TitleBar
from tui.widgets.key_bar import KeyBar
from tui.widgets.text_pane import TextPane

MOST_CURVES = 16  # runs whose curves are drawn: more can't be told apart
EVERY = 2.0  # seconds until runs that go on are read again


class CompareScreen(DeckScreen):
    BINDINGS = bindings("compare")
    AUTO_FOCUS = "#compared"

    def __init__(self, runs: tuple[str, ...]) -> None:
        super().__init__()
        self._runs = runs
        self._compared: list[Compared] = []
        self._parts: tuple[Topic, ...] = ()
        self._metrics: list[str] = []
        self._metric = 0
        self._shows_code = False

    def compose(self) -> ComposeResult:
        yield TitleBar("Compare", plain_line(", ".join(self._runs)), ascii=self.deck.ascii)
        yield Chart(ascii=self.deck.ascii, slow=self.deck.slow, id="overlay")
        yield TextPane(id="compared", ascii=self.deck.ascii)
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one(Chart).look = Look(most=MOST_CURVES, smoothing=None)
        self.set_interval(EVERY, self._read_if_live)
        self._read()

    def _read_if_live(self) -> None:
        if self.is_current and not all(one.side.results.get("state") in ENDED_WORDS for one in self._compared):
            self._read()

    @work(group="compare", exclusive=True, exit_on_error=False)
    async def _read(self) -> None:
        try:
            self._compared = [self._in_units(await off_loop(self.engine.compared, run)) for run in self._runs]
        except RankdeckError as error:
            self.query_one(TextPane).show_text(partial(error_text, error), title="Compare")
            return
        keys = {dump.key for one in self._compared for dump in one.snapshot.series}
        metric = self._metrics[self._metric] if self._metrics else "loss"
        self._metrics = sorted(keys, key=lambda key: (key in RESOURCES, key != "loss", key))
        self._metric = self._metrics.index(metric) if metric in self._metrics else 0
        self._parts = compare([one.side for one in self._compared])
        self._show()

    def _in_units(self, one: Compared) -> Compared:
        """A run whose time of launch is written as the user likes it."""
        launched = clock(one.side.launched_at, DAY_AND_TIME, self.deck.units)
        return one._replace(side=replace(one.side, results={**one.side.results, "launched": launched}))

    def _show(self) -> None:
        ascii, sides = self.deck.ascii, [one.side for one in self._compared]
        pane = self.query_one(TextPane)
        if self._shows_code:
            lines = [line for pair in itertools.pairwise(sides) for line in code_difference(*pair)]
            pane.show_text(partial(code_text, lines, ascii=ascii), title="How uncommitted changes differ")
        else:
            look = partial(drawn_as, dark=self.app.current_theme.dark, ascii=ascii)
            runs = [DrawnRun(one.run) for one in sides]
            for index, one in enumerate(runs[:MOST_CURVES]):
                sign, colour = look(index)
                runs[index] = one._replace(sign=sign, style=rgb(colour))
            pane.show_text(partial(compare_text, runs, self._parts, ascii=ascii), title="Results and differences")
        self._show_curves()
        self.refresh_bindings()

    def _show_curves(self) -> None:
        if not self._metrics:
            return
        metric = self._metrics[self._metric]
        labels = labels_of([one.side.run for one in self._compared], self._parts)
        curves = [
            (plain_line(label), overlay(one.snapshot.series, metric, one.side.launched_at) or Series(0, metric))
            for label, one in zip(labels, self._compared[:MOST_CURVES], strict=False)
        ]
        others = f" (of the first {MOST_CURVES} runs)" if len(self._compared) > MOST_CURVES else ""
        self.query_one(Chart).set_series(f"{RESOURCES.get(metric) or plain_line(metric)}{others}", curves)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("next_metric", "choose_metric"):
            return len(self._metrics) > 1
        return bool(self._compared) if action == "code" else True

    def action_next_metric(self, by: int) -> None:
        if self._metrics:
            self._metric = (self._metric + by) % len(self._metrics)
            self._show_curves()

    def action_choose_metric(self) -> None:
        if self._metrics:
            self.deck.choose_from({key: RESOURCES.get(key, "") for key in self._metrics}, self._choose, "a metric")

    def _choose(self, metric: str) -> None:
        self._metric = self._metrics.index(metric)
        self._show_curves()

    def action_code(self) -> None:
        self._shows_code = not self._shows_code
        self._show()

    def action_whole(self) -> None:
        now = [name for name in ("-chart-only", "-table-only") if self.has_class(name)]
        following = {"": "-chart-only", "-chart-only": "-table-only", "-table-only": ""}[now[0] if now else ""]
        self.remove_class("-chart-only", "-table-only")
        if following:
            self.add_class(following)
