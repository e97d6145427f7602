"""Measured collectives: a table, and beside it or in its place their curves over size."""

from collections.abc import Callable, Sequence

from textual import events

from engine.core.metrics.bench import Result
from tui.text.bench import MEASURES, TABLE, Measure, bench_curves, bench_table, curve_names, size_ticks, value_ticks
from tui.text.plot import Picture, Request, Ticks, draw_curves
from tui.widgets.chart import SMALLEST, SWATCH, Chart, lines_of
from tui.widgets.text_pane import TextPane

BOTH = TABLE + 36  # least width in cells at which the curves have room beside the table
GAP = 2  # cells between them


class BenchChart(Chart):
    """One curve for each collective, on logarithmic axes."""

    def __init__(self, *, ascii: bool, slow: bool) -> None:
        super().__init__(ascii=ascii, slow=slow)
        self._results: tuple[Result, ...] = ()
        self._measure: Measure = "latency"

    def show(self, results: Sequence[Result], measure: Measure) -> None:
        self._results, self._measure = tuple(results), measure
        self.set_series(MEASURES[measure], ())

    def _contents(self) -> object:
        return self._results, self._measure

    def _drawing(self, request: Request) -> Callable[[], Picture | None]:
        results, measure = self._results, self._measure

        def draw() -> Picture | None:
            found = bench_curves(results, measure)
            if found is None:
                return None
            return draw_curves(found, request, Ticks(size_ticks(*found.x_range), value_ticks(*found.y_range, measure)))

        return draw

    def _legend(self) -> int:
        names = [len(name) + SWATCH for name in curve_names(self._results)]
        lines = lines_of([len(self._title), *names], self.size.width)[-1] + 1
        return min(lines, max(1, self.size.height - SMALLEST[1] + 1))

    def _words(self) -> str:
        return "no room for a chart" if self._results else "nothing has been measured yet"


class BenchPane(TextPane):
    """The table; if there is room, the curves are beside it, else one key goes from one to the next."""

    def __init__(self, *, ascii: bool, slow: bool) -> None:
        super().__init__(id="bench", ascii=ascii)
        self._chart = BenchChart(ascii=ascii, slow=slow)
        self._results: list[Result] = []
        self._measure: Measure | None = None
        """The measure that is drawn; None: only the table, because there is no room for both."""

    def on_mount(self) -> None:
        self.mount(self._chart)
        self.show_results([])

    def show_results(self, results: list[Result]) -> None:
        self._results = results
        self.show_text(lambda width: bench_table(results))
        self._arrange()

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()

    def next_curves(self) -> None:
        """The next measure. After the last one comes the table, unless it is shown already."""
        cycle: list[Measure | None] = [*MEASURES] if self._has_room else [None, *MEASURES]
        place = cycle.index(self._shown) + 1
        self._measure = cycle[place % len(cycle)]
        self._arrange()

    @property
    def _has_room(self) -> bool:
        return self.scrollable_content_region.width >= BOTH

    @property
    def _shown(self) -> Measure | None:
        return self._measure or ("latency" if self._has_room else None)

    def _arrange(self) -> None:
        shown = self._shown
        self._text.display = self._has_room or shown is None
        self._chart.display = shown is not None
        if shown is not None:
            width = self.scrollable_content_region.width
            self._chart.styles.width = width - TABLE - GAP if self._has_room else width
            self._chart.show(self._results, shown)
