"""Ranks by node as cells: how one rank looks by a measure, and how many boxes of nodes fit beside each other. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Literal, NamedTuple

from engine.core.run.state import RankWord
from engine.core.views.view import RankView
from tui.text.marks import CURSOR, signs

Measure = Literal["throughput", "loss", "step lag", "memory"]
MEASURES: tuple[Measure, ...] = ("throughput", "loss", "step lag", "memory")
"""The last one needs GPUs and is skipped where there are none."""

SLOW = 0.8  # part of the median throughput: a rank below it stands out
HIGH = 1.5  # multiple of the median loss: a rank above it stands out
LATE = 5  # a rank stands out if it is this number of steps behind the furthest rank

FULL = 0.95  # part of the memory of its GPU: a rank that uses more stands out, because the next allocation may fail

GAP = 2  # cells between two boxes
Part = RankWord | Literal["", "block", "alarm"]  # the style of a piece of a line; empty: plain text


class Boxes(NamedTuple):
    """Sizes of the boxes. In cells: `name`, `tally` (the `8/8`), `cells` (one line of ranks). `lines`: height of a box.
    `across`: boxes beside each other."""

    name: int
    tally: int
    cells: int
    lines: int
    across: int

    @classmethod
    def fitted(cls, width: int, *, name: int, ranks: int) -> Boxes:
        """The widths for boxes of one size, as many beside each other as fit."""
        tally = 2 * len(str(ranks)) + 1
        name = max(1, min(name, 24 if width >= 120 else 12, width - tally - 5 - min(ranks, 8)))
        room = max(1, width - cls(name, tally, 0, 0, 0)._head())
        cells = max(1, min(ranks, room))
        if cells < ranks and cells > 8:
            cells -= cells % 8
        boxes = cls(name, tally, cells, math.ceil(ranks / cells), 1)
        return boxes._replace(across=max(1, (width + GAP) // (boxes.width + GAP)))

    def _head(self) -> int:
        return CURSOR + self.name + 1 + 2 + self.tally + 1

    @property
    def width(self) -> int:
        return self._head() + self.cells


class Cell(NamedTuple):
    """How one rank looks."""

    sign: str
    part: Part


def cells_of(views: Mapping[int, RankView], measure: Measure, *, ascii: bool) -> dict[int, Cell]:
    """The cell of each rank. `measure`: what the height of a block means: throughput or loss beside the greatest of all ranks, how many
    steps a rank is behind the furthest, or how full its GPU is."""
    values = {rank: value for rank, view in views.items() if (value := _value(view, measure)) is not None}
    if measure == "step lag":
        furthest = max(values.values(), default=0.0)
        values = {rank: furthest - value for rank, value in values.items()}
    finite = [value for value in values.values() if math.isfinite(value)]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    drawn = signs(ascii=ascii)
    last = len(drawn.blocks) - 1
    high = {"step lag": max(high, last), "memory": 1.0}.get(measure, high)
    median = statistics.median(finite) if finite else 0.0

    def cell(rank: int, view: RankView) -> Cell:
        value = values.get(rank)
        if view.state != "running" or value is None:
            return Cell(drawn.ranks[view.state], view.state)
        if not math.isfinite(value):
            return Cell(drawn.odd, "failed")
        # Halves, because the difference of two large floats can be infinite.
        height = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.0
        alarm = {
            "throughput": value < SLOW * median,
            "loss": value > HIGH * median > 0,
            "step lag": value >= LATE,
            "memory": value > FULL,
        }[measure]
        return Cell(drawn.blocks[round(height * last)], "alarm" if alarm else "block")

    return {rank: cell(rank, view) for rank, view in views.items()}


def _value(view: RankView, measure: Measure) -> float | None:
    gpu = view.gpu
    values = {
        "throughput": view.throughput,
        "loss": view.loss,
        "step lag": view.step,
        "memory": (
            min(1.0, gpu.memory / gpu.memory_total) if gpu and gpu.memory is not None and gpu.memory_total else None
        ),
    }
    value = values[measure]
    try:
        return None if value is None else float(value)
    except OverflowError:
        return math.inf
