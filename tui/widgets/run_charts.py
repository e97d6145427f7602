"""The curves of a run: some metrics of its ranks at once, beside and above each other; keys go through all metrics."""

from functools import partial
from typing import cast

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content

from engine.core.metrics.resources import RESOURCES
from tui.data.curves import Look
from tui.data.model import LOSS, THROUGHPUT, RunModel
from tui.deck import Deck
from tui.keys import bindings
from tui.text.cells import plain_line
from tui.widgets.chart import Chart

SMOOTHINGS = (None, 0.0, 0.6, 0.9)  # values that one key sets one after the other
PANELS = (1, 2, 4, 6)  # numbers of charts that one key sets one after the other

ZOOM = 0.5
LEAST_PART = 0.02  # smallest part of a run that is drawn


class RunCharts(Container, can_focus=True):
    BINDINGS = bindings("chart")

    def __init__(self, *, ascii: bool, slow: bool) -> None:
        super().__init__(id="chart", classes="pane")
        self._new_chart = partial(Chart, ascii=ascii, slow=slow)
        self._charts = [self._new_chart() for _ in range(2)]
        self._count = len(self._charts)
        self._page = 0
        self._look = Look(most=1, smoothing=None)
        self._model: RunModel | None = None

    def compose(self) -> ComposeResult:
        yield from self._charts

    def show_run(self, model: RunModel, rank: int | None = None) -> None:
        """Shows the series of every rank; the charts see for themselves whether anything is new. `rank`: whose curve is drawn above the
        band of many ranks; None: none."""
        self._model = model
        self._look = self._look._replace(chosen="" if rank is None else f"r{rank}")
        self._draw()

    def _draw(self) -> None:
        model = self._model
        if model is None:
            return
        pages = self._pages
        shown = pages[self._page % len(pages)]
        for chart, key in zip(self._charts, [*shown, *[""] * len(self._charts)], strict=False):
            chart.display = bool(key)
            if key:
                chart.look = self._look
                curves = [(f"r{rank}", model.series.get(rank, key)) for rank in range(model.world_size)]
                chart.set_series(_title(model, key), [(name, curve) for name, curve in curves if curve is not None])
        words = [f"metrics {self._page % len(pages) + 1}/{len(pages)}"] if len(pages) > 1 else []
        self.border_subtitle = Content(", ".join([*words, *look_words(self._look)]))

    @property
    def _pages(self) -> list[tuple[str, ...]]:
        """The metrics that are drawn at the same time, page by page."""
        metrics = metrics_of(self._model.series.keys() if self._model is not None else [])
        return [tuple(metrics[first : first + self._count]) for first in range(0, len(metrics), self._count)]

    @property
    def metric(self) -> str:
        return self._pages[self._page % len(self._pages)][0]

    def action_metrics(self, direction: int) -> None:
        self._page += direction
        self._draw()

    def show_panels(self, count: int) -> None:
        """Shows this number of charts at once, or one for each metric if there are fewer. The first chart that was shown stays."""
        first = self._page * self._count
        self._count, self._page = count, first // count
        new = [self._new_chart() for _ in range(len(self._charts), count)]
        self._charts += new
        if self.is_attached:
            self.mount(*new)
        for one in PANELS:
            self.set_class(one == count, f"-charts-{one}")
        self._draw()

    def action_panels(self) -> None:
        self.show_panels(PANELS[(PANELS.index(self._count) + 1) % len(PANELS)])
        cast("Deck", self.app).keep_look(charts=self._count)

    def action_choose(self) -> None:
        if self._model is not None:
            keys = metrics_of(self._model.series.keys())
            cast("Deck", self.app).choose_from({key: RESOURCES.get(key, "") for key in keys}, self._choose, "a metric")

    def _choose(self, metric: str) -> None:
        self._page = next((number for number, page in enumerate(self._pages) if metric in page), self._page)
        self._draw()

    def action_log(self) -> None:
        self._change(log=not self._look.log)

    def action_by_time(self) -> None:
        self._change(by_time=not self._look.by_time)

    def action_smooth(self) -> None:
        self._change(smoothing=SMOOTHINGS[(SMOOTHINGS.index(self._look.smoothing) + 1) % len(SMOOTHINGS)])

    def action_zoom(self, direction: int) -> None:
        """Draws half of the time that is drawn, at its newest end, or twice as much; 0: the whole run."""
        part = self._look.end - self._look.begin
        part = max(LEAST_PART, part * ZOOM) if direction > 0 else min(1.0, part / ZOOM) if direction else 1.0
        end = max(part, self._look.end) if direction else 1.0
        self._change(begin=end - part, end=end)

    def action_pan(self, direction: int) -> None:
        part = self._look.end - self._look.begin
        begin = min(1.0 - part, max(0.0, self._look.begin + direction * part / 2))
        self._change(begin=begin, end=begin + part)

    def _change(self, **fields: object) -> None:
        self._look = self._look._replace(**fields)  # type: ignore[arg-type]
        self._draw()


def metrics_of(keys: list[str]) -> list[str]:
    """Loss, throughput, other losses, what else was logged, then what ranks use of their nodes: what there is of it."""
    resources = list(RESOURCES)

    def order(key: str) -> tuple[int, bool, str]:
        return (resources.index(key) + 1 if key in RESOURCES else 0, "loss" not in key, key)

    others = sorted((key for key in keys if key not in (LOSS, THROUGHPUT)), key=order)
    return [*(key for key in (LOSS, THROUGHPUT) if key in keys or not others), *others]


def look_words(look: Look) -> list[str]:
    """The settings of the chart that differ from the default, in words."""
    part = f"{look.begin:.0%}-{look.end:.0%} of the run" if look.end - look.begin < 1 else ""
    smooth = "" if look.smoothing is None else f"smoothed {look.smoothing:g}" if look.smoothing else "not smoothed"
    return [word for word in ("log" * look.log, "by time" * look.by_time, smooth, part) if word]


def _title(model: RunModel, key: str) -> str:
    unit = plain_line(model.run.unit) if model.run is not None else ""
    if key == THROUGHPUT:
        return f"{unit}/s" if unit else key
    return RESOURCES.get(key) or plain_line(key)
