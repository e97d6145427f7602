"""The columns of the rank table: which fit a width, and the text of a row in them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from engine.core.metrics.resources import ProcessUse
from engine.core.numbers import NOTHING, age, memory, number, percent
from engine.core.settings import DEFAULT_UNITS, HidableColumn, Look, Units
from engine.core.views.view import RankView
from tui.data.model import Row
from tui.data.rank_order import COLUMNS, Column
from tui.text.cells import cell_fit, plain_line
from tui.text.marks import CURSOR, signs
from tui.text.sparkline import WINDOWS, Scale, scale_of, spark_values, sparkline

LEAST_NOTE = 16  # cells of a note that fit the reason of a failure; sparklines and GPU make room for it


class Sparks(NamedTuple):
    """How the small curves are drawn. `since`: older values are left out; the scales: None: each curve has its own."""

    since: float | None = None
    throughput: Scale | None = None
    loss: Scale | None = None


def sparks_of(rows: Sequence[Row], look: Look, now: int) -> Sparks:
    """One scale for all ranks, so that they can be compared, or each its own."""
    seconds = dict(WINDOWS)[look.curves]
    since = None if seconds is None else now - seconds
    if look.own_scale:
        return Sparks(since)
    return Sparks(since, scale_of((row.throughput for row in rows), since), scale_of((row.loss for row in rows), since))


class Columns(NamedTuple):
    """Widths in cells; 0 leaves a column out. The note takes the rest."""

    rank: int
    node: int
    local: int
    state: int
    step: int
    throughput: int
    loss: int
    spark: int
    gpu: int
    memory: int
    cpu: int
    rss: int
    io: int
    late: int
    seen: int
    note: int

    @classmethod
    def fitted(
        cls,
        width: int,
        *,
        world_size: int,
        node: int,
        gpus: bool = False,
        usage: bool = False,
        late: bool = False,
        hidden: Collection[HidableColumn] = (),
    ) -> Columns:
        """The columns that fit a width, in cells. Local rank and age go first, then the sparklines shrink, then the note, then the GPU leaves; below 60
        cells other columns leave for good, the state last. `node`: cells of the longest node name; 0: all ranks are on one node, which needs no column.
        `gpus`, `usage`, `late`: whether use of GPUs, use of resources and lateness are known. `hidden`: columns that are left out even if they fit."""

        def with_widths(columns: Columns, **widths: int) -> Columns:
            return columns._replace(**{name: 0 if name in hidden else width for name, width in widths.items()})

        rank = max(4, len(str(world_size - 1)))
        node_width = node and min(max(4, node), 24 if width >= 120 else 10)
        columns = cls(rank, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        columns = with_widths(columns, node=node_width, step=7, throughput=7, loss=7)
        columns = with_widths(columns, late=4 if late and width >= 72 else 0)
        with_gpu = with_widths(columns, gpu=4, memory=5)
        if gpus and with_gpu._used() + LEAST_NOTE <= width:
            columns = with_gpu
        for field in ("loss", "throughput", "step", "node"):
            if columns._used() > width:
                columns = columns._replace(**{field: 0})
        if width >= 110:
            columns = with_widths(columns, local=5 if node else 0, seen=6)
        with_usage = with_widths(columns, cpu=6, rss=5, io=5)
        if usage and with_usage._used() + 2 * LEAST_NOTE <= width:
            columns = with_usage
        rest = width - columns._used()
        if curves := columns._curves:
            spark = min(32, (rest - max(LEAST_NOTE, rest * 2 // 5)) // curves - 1)
            columns = columns._replace(spark=spark if spark >= 4 else 0)
        return columns._replace(note=max(0, width - columns._used() - 1))

    @property
    def _curves(self) -> int:
        return bool(self.throughput) + bool(self.loss)

    def _used(self) -> int:
        sparks = self._curves * (self.spark + 1) if self.spark else 0
        numbers = (self.step, self.throughput, self.loss, self.gpu, self.memory, self.cpu, self.rss, self.io, self.late)
        fields = (self.node, self.local, self.state, *numbers, self.seen)
        return CURSOR + self.rank + sum(width + 1 for width in fields if width) + sparks


class Fit:
    """The columns of a table and the unit of its throughput. Columns do not come and go with a restart."""

    def __init__(self) -> None:
        self.columns = Columns.fitted(80, world_size=1, node=4)
        self.unit = ""
        self._has_gpus = self._has_usage = self._has_late = False  # whether use of a GPU, and so on, was ever known

    def take(self, views: Iterable[RankView], width: int, hidden: Collection[HidableColumn]) -> bool:
        """Fits the columns to rows and a width. True if they changed."""
        views = list(views)
        nodes = {view.node for view in views}
        self._has_gpus = self._has_gpus or any(view.gpu is not None for view in views)
        self._has_usage = self._has_usage or any(view.process is not None for view in views)
        self._has_late = self._has_late or any(view.late is not None for view in views)
        before = self.columns, self.unit
        self.columns = Columns.fitted(
            width,
            world_size=len(views),
            node=max(map(len, nodes)) if len(nodes) > 1 else 0,
            gpus=self._has_gpus,
            usage=self._has_usage,
            late=self._has_late,
            hidden=hidden,
        )
        self.unit = next((f"{'~' if view.is_derived else ''}{view.unit}" for view in views if view.unit), "")
        return (self.columns, self.unit) != before

    @property
    def sortable(self) -> list[Column]:
        shown = {name for name, _ in headings(self.columns, self.unit, ascii=False)}
        return [column for column in COLUMNS if column in shown]

    def column_at(self, x: int) -> Column | None:
        """The column whose heading covers a cell of the line; None: ranks can't be sorted by anything there."""
        for name, text in headings(self.columns, self.unit, ascii=False):
            x -= cell_len(text)
            if x < 0:
                return next((column for column in COLUMNS if column == name), None)
        return None


def row_parts(
    row: Row,
    columns: Columns,
    now: float,
    *,
    cursor: bool,
    ascii: bool,
    sparks: Sparks = Sparks(),  # noqa: B008
    units: Units = DEFAULT_UNITS,
) -> tuple[tuple[str, str], ...]:
    """A row as (style or empty, text) of its parts, left to right; a style is a state, `muted` or `spark`."""
    view, throughput, loss = row
    drawn = signs(ascii=ascii)
    text: list[tuple[str, str]] = [("", (drawn.cursor if cursor else " ") + str(view.rank).rjust(columns.rank))]
    if columns.node:
        text.append(("", " " + cell_fit(plain_line(view.node), columns.node, ascii=ascii)))
    if columns.local:
        text.append(("muted", " " + str(view.local_rank).rjust(columns.local)))
    state = f" {drawn.trouble} {view.health}" if has_mark(view) else f" {drawn.ranks[view.state]} {view.state}"
    text.append(
        ("trouble" if has_mark(view) else view.state, plain_line(state).ljust(columns.state + 1)[: columns.state + 1])
    )
    if columns.step:
        step = NOTHING if view.step is None else str(view.step)
        text.append(("", " " + step.rjust(columns.step)))
    measured = (
        (columns.throughput, view.throughput, throughput, sparks.throughput),
        (columns.loss, view.loss, loss, sparks.loss),
    )
    for width, value, source, scale in measured:
        if width:
            text.append(("", " " + number(value, width)))
        if width and columns.spark:
            values = spark_values(source, columns.spark, sparks.since)
            text.append(("spark", " " + sparkline(values, columns.spark, ascii=ascii, scale=scale)))
    busy, used = (None, None) if view.gpu is None else (view.gpu.utilisation, view.gpu.memory)
    cpu, rss, io = _usage(view.process, units)
    uses = (
        (percent(busy), columns.gpu),
        (memory(used, units), columns.memory),
        (cpu, columns.cpu),
        (rss, columns.rss),
        (io, columns.io),
        (percent(None if view.late is None else round(100 * view.late.share)), columns.late),
    )
    if shown := "".join(f" {value:>{width}}" for value, width in uses if width):
        text.append(("", shown))
    if columns.seen:
        seen = age(None if view.seen is None else now - view.seen)
        text.append(("muted", " " + seen.rjust(columns.seen)))
    if columns.note:
        note = note_of(view, now)
        other = view.phase or view.aside or without_time(plain_line(view.last_line))
        note_cells = cell_fit(note or plain_line(other), columns.note, ascii=ascii)
        text.append(("" if note else "muted", " " + note_cells))
    if ascii:
        text = [(part, cell.replace(NOTHING, "-")) for part, cell in text]
    return tuple(text)


def _usage(process: ProcessUse | None, units: Units) -> tuple[str, str, str]:
    """Percent of one core, memory, and bytes read and written a second of a rank's process."""
    if process is None:
        return NOTHING, NOTHING, NOTHING
    return percent(process.cpu), memory(process.memory, units), memory(process.transferred, units)


_TIME = re.compile(
    r"\[?(?:\d{4}[-/]\d\d[-/]\d\d[T ,]+)?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[\s:,|-]+(?=\S)"
)
"""The time at the beginning of a line of a log, and what separates it from the text."""


def without_time(line: str) -> str:
    """A line without the time at its beginning, which would fill a narrow column."""
    return _TIME.sub("", line, count=1) if _TIME.match(line) else line


def has_mark(view: RankView) -> bool:
    """Whether a rank runs, and something is wrong with it."""
    return bool(view.health) and view.state == "running"


def note_of(view: RankView, now: float) -> str:
    """Why a rank is as it is; empty: nothing to say. `now`: seconds since the epoch."""
    note = plain_line(view.note)
    if view.health != "stalled" or view.health_since is None:
        return note
    return (f"{note}; " if note else "") + f"no step for {age(now - view.health_since)}"


def headings(columns: Columns, unit: str, *, ascii: bool) -> list[tuple[str, str]]:
    """The line above the rows as (column or empty, text) of its parts, left to right."""
    unit = f"{plain_line(unit)}/s" if unit else "per s"
    if cell_len(unit) > columns.throughput:
        unit = "~per s" if unit.startswith("~") else "per s"  # the header above has all of it
    spark = " " * (columns.spark + 1 if columns.spark else 0)
    parts = [
        ("rank", columns.rank, " " + "rank".rjust(columns.rank)),
        ("node", columns.node, " " + cell_fit("node", columns.node)),
        ("local", columns.local, " " + "local".rjust(columns.local)),
        ("state", columns.state, " " + cell_fit("state", columns.state)),
        ("step", columns.step, " " + "step".rjust(columns.step)),
        ("throughput", columns.throughput, " " + cell_fit(unit, columns.throughput, ascii=ascii, right=True) + spark),
        ("loss", columns.loss, " " + "loss".rjust(columns.loss) + spark),
        ("gpu", columns.gpu, " " + "gpu".rjust(columns.gpu)),
        ("memory", columns.memory, " " + "mem".rjust(columns.memory)),
        ("cpu", columns.cpu, " " + "cpu".rjust(columns.cpu)),
        ("rss", columns.rss, " " + "rss".rjust(columns.rss)),
        ("io", columns.io, " " + "io/s".rjust(columns.io)),
        ("late", columns.late, " " + "late".rjust(columns.late)),
        ("seen", columns.seen, " " + "seen".rjust(columns.seen)),
        ("", columns.note >= 9, " last line"),
    ]
    return [(name, text) for name, width, text in parts if width]


def with_arrow(text: str, *, rising: bool, ascii: bool) -> str:
    place = len(text) - len(text.lstrip()) - 1
    arrow = ("^" if rising else "v") if ascii else ("▲" if rising else "▼")
    return text[:place] + arrow + text[place + 1 :]
