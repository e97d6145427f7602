"""The curves of a run: loss and throughput of its ranks, side by side or one above the other."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container

from engine.core.metrics.series import Series
from tui.data.model import LOSS, THROUGHPUT, RunModel
from tui.text.cells import plain_line
from tui.widgets.chart import Chart


class RunCharts(Container, can_focus=True):
    """Two charts of the same ranks."""

    DEFAULT_CSS = """
    RunCharts { layout: horizontal; }
    RunCharts > Chart { width: 1fr; height: 1fr; background: $background; margin: 0 1; }
    .-narrow RunCharts { layout: vertical; }
    """

    def __init__(self, *, ascii: bool, slow: bool, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self._loss = Chart(ascii=ascii, slow=slow, id="chart-loss")
        self._throughput = Chart(ascii=ascii, slow=slow, id="chart-throughput")

    def compose(self) -> ComposeResult:
        yield self._loss
        yield self._throughput

    def show_run(self, model: RunModel) -> None:
        """Shows the series of every rank; the charts see for themselves whether anything is new."""
        unit = plain_line(model.run.unit) if model.run is not None else ""
        self._loss.set_series("loss", _series(model, LOSS))
        self._throughput.set_series(f"{unit}/s" if unit else "throughput", _series(model, THROUGHPUT))


def _series(model: RunModel, key: str) -> list[tuple[str, Series]]:
    found = [(f"r{rank}", model.series.get(rank, key)) for rank in range(model.world_size)]
    return [(name, series) for name, series in found if series is not None]
