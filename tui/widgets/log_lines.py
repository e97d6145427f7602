"""How one line of a log looks: its prefix, its own colours, and the marks of a search and of a selection."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.cells import chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from engine.core.log_levels import Level
from tui.data.log_folding import Line
from tui.data.merged_log import MergedLog
from tui.text.cells import Span

STDERR = "▌"
ASCII_STDERR = "!"
"""The sign before every line of stderr."""

TIMES = "×"  # noqa: RUF001  not the letter
"""Before the number of ranks that have printed a line."""

NARROWEST = 8
"""Cells that the text of a wrapped line has at least."""


class Styles(NamedTuple):
    """The styles of the parts of a line."""

    base: Style
    prefix: Style
    stderr: Style
    match: Style
    current_match: Style
    selection: Style
    levels: dict[Level, Style]


class Prefix(NamedTuple):
    """The text before a line, repeated in every row."""

    text: str
    is_stderr: bool
    sign: str = ""
    """Its beginning, which tells stderr from stdout."""


def prefix(log: MergedLog, line: Line, *, ascii: bool) -> Prefix:
    """A sign if the line is stderr's and there is also stdout, and if there are several ranks, the number of the line's, or how many have it."""
    source = log.sources[line.source]
    is_stderr = source.stream == "err"
    sign = ""
    if log.has_stderr:
        sign = (ASCII_STDERR if ascii else STDERR) if is_stderr else " "
    rank = ""
    if len(log.ranks) > 1:
        whose = f"{'x' if ascii else TIMES}{len(line.others) + 1}" if line.others else f"r{source.rank}"
        rank = f"[{whose}] ".ljust(len(str(log.ranks[-1])) + 4)
    return Prefix(sign + rank, is_stderr, sign)


def drawn(head: Prefix, text: str, spans: Sequence[Span], styles: Styles, *, width: int, number: int) -> list[Strip]:
    """The rows of a line.

    Args:
        head: its prefix.
        text: clean text.
        spans: its colours and marks; of those that overlap, later ones win.
        styles: the theme's.
        width: cells of a row; 0 leaves the line in one row of any length.
        number: of the line, kept in the rows for selecting text with the mouse.
    """
    before = [Segment(head.text, styles.stderr if head.is_stderr else styles.prefix)] if head.text else []
    pieces = chop_cells(text, max(NARROWEST, width - len(head.text))) if width and text else [text]
    rows: list[Strip] = []
    begin = 0
    for piece in pieces:
        rows.append(Strip([*before, *_painted(piece, begin, spans, styles.base)]).apply_offsets(begin, number))
        begin += len(piece)
    return rows


def _painted(text: str, offset: int, spans: Sequence[Span], base: Style) -> list[Segment]:
    """A part of a line in its styles. `offset`: where in the line it begins."""
    end = offset + len(text)
    inside = [(max(a, offset), min(b, end), style) for a, b, style in spans if a < end and b > offset]
    if not inside:
        return [Segment(text, base)]
    edges = sorted({offset, end, *(a for a, _, _ in inside), *(b for _, b, _ in inside)})
    segments: list[Segment] = []
    for left, right in pairwise(edges):
        style = base
        for a, b, own in inside:
            if a <= left and right <= b:
                style += own
        segments.append(Segment(text[left - offset : right - offset], style))
    return segments
