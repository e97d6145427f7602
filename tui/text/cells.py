"""Text of ranks, nodes and users, made fit for a terminal: the one place that decides which characters get there. Stored bytes stay as
they are. For display, a line keeps its text and, where asked, its SGR colours; every other control sequence, control character and
invisible character goes."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.style import Style

from engine.core.terminal_text import SEQUENCE, UNFIT, decoded

MAX_CELLS = 4096  # longest line that is shown: a line of a megabyte would freeze the app
MAX_RAW = 16 * MAX_CELLS  # longest part of a line that is looked at, control sequences included
MAX_SEGMENTS = 64  # segments between carriage returns that are looked at for one that has text
MAX_SUFFIX = 9  # cells of the end of a run's id, dash included; the engine's have five

TAB = 8

Span = tuple[int, int, Style]  # (start, end, style): part of a line, in characters

_ATTRIBUTES = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "reverse", 9: "strike"}
"""Blinking and hidden text are left out on purpose."""

_ENDS = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("reverse",), 29: ("strike",)}


def clean(data: bytes | str) -> str:
    """Text of several lines without colours, each line as `plain_line` has it."""
    return "\n".join(plain_line(line) for line in decoded(data).split("\n"))


def plain_line(data: bytes | str) -> str:
    """One line of plain text, for a cell of a table. The last line that has text, if there are several."""
    return segments_line(data, colour=False)[0]


def cut(text: str, width: int, *, ascii: bool = False) -> str:
    """Clean text of one line in at most `width` cells, cut with an ellipsis, or with `~` where only ASCII is drawn."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + ("~" if ascii else "…") if width > 0 else ""


def cut_run(run: str, width: int, *, ascii: bool = False) -> str:
    """A run's id in at most `width` cells, clean. Cuts the name only: the end tells runs of one name apart."""
    text = plain_line(run)
    name, dash, end = text.rpartition("-")
    room = width - cell_len(dash + end)
    if cell_len(text) <= width or cell_len(end) >= MAX_SUFFIX or room < 2:
        return cut(text, width, ascii=ascii)
    return cut(name, room, ascii=ascii) + dash + end


def cell_fit(text: str, width: int, *, ascii: bool = False, right: bool = False) -> str:
    """Text in exactly this number of cells, cut with an ellipsis or filled with spaces. `right`: aligned to the right."""
    text = cut(text, width, ascii=ascii)
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def segments_line(data: bytes | str, *, colour: bool = True) -> tuple[str, list[Span]]:
    """One line as a terminal would leave it, and where its colours are. `data`: a line of a process, up to its line feed. A carriage
    return starts the line again, as in progress bars. Returns the text, at most `MAX_CELLS` wide, and the styles of its parts in order."""
    text = decoded(data)
    if text.isascii() and text.isprintable() and len(text) <= MAX_CELLS:
        return text, []
    parts = (part for part in reversed(re.split(r"[\r\n]", text)) if part)
    for part in islice(parts, MAX_SEGMENTS):
        line, spans = _part(part, colour)
        if line and not line.isspace():
            return line, spans
    return "", []


def _part(text: str, colour: bool) -> tuple[str, list[Span]]:
    """The text between two carriage returns."""
    cut = len(text) > MAX_RAW
    text = text[:MAX_RAW]
    pieces: list[tuple[str, _Pen]] = []
    pen = _Pen()
    begin = 0
    for match in SEQUENCE.finditer(text):
        pieces.append((text[begin : match.start()], pen))
        begin = match.end()
        if colour and match["final"] == "m":
            pen = _turned(pen, match["parameters"])
    pieces.append((text[begin:], pen))
    if "\b" in text:
        pieces = _without_backspaces(pieces)

    line = ""
    cells = 0
    spans: list[Span] = []
    for piece, pen in pieces:
        fit = UNFIT.sub("", piece)
        if "\t" in fit:
            fit = _without_tabs(fit, cells)
        if not fit.isascii() and len(fit) > 2 * cell_len(fit) + 8:
            fit = _without_stacks(fit)
        if not fit:
            continue
        if pen != _PLAIN:
            spans.append((len(line), len(line) + len(fit), _style(pen)))
        line += fit
        cells += cell_len(fit)
    if cut or cells > MAX_CELLS or len(line) > 2 * MAX_CELLS:
        line = set_cell_size(line[: 2 * MAX_CELLS], MAX_CELLS - 1).rstrip() + "…"
        spans = [(start, min(end, len(line)), style) for start, end, style in spans if start < len(line)]
    return line, spans


def _without_stacks(text: str) -> str:
    """The text with at most two accents on a letter: a terminal would paint a thousand of them over other lines."""
    kept: list[str] = []
    accents = 0
    for character in text:
        accents = accents + 1 if unicodedata.combining(character) else 0
        if accents <= 2:
            kept.append(character)
    return "".join(kept)


def _without_tabs(text: str, cells: int) -> str:
    first, *others = text.split("\t")
    line = first
    for other in others:
        line += " " * (TAB - (cells + cell_len(line)) % TAB) + other
        if len(line) > 2 * MAX_CELLS:
            break
    return line


def _without_backspaces(pieces: list[tuple[str, _Pen]]) -> list[tuple[str, _Pen]]:
    """The pieces in which each backspace has taken the character before it."""
    kept: list[tuple[str, _Pen]] = []
    for piece, pen in pieces:
        for character in piece:
            if character != "\b":
                kept.append((character, pen))
            elif kept:
                kept.pop()
    return kept


# --- colours ---------------------------------------------------------------------------------------------------------


class _Pen(NamedTuple):
    """The style that results from the colour sequences so far."""

    ink: Color | None = None
    paper: Color | None = None
    attributes: frozenset[str] = frozenset()


_PLAIN = _Pen()


@lru_cache(maxsize=1024)
def _style(pen: _Pen) -> Style:
    return Style.from_color(pen.ink, pen.paper) + Style.parse(" ".join(pen.attributes))


@lru_cache(maxsize=4096)
def _turned(pen: _Pen, parameters: str) -> _Pen:
    """The pen after one SGR sequence (ECMA-48 8.3.117; extended colours as ITU T.416 and as xterm write them)."""
    codes = [int(one) if one.isdecimal() else 0 for one in parameters.replace("::", ":").replace(":", ";").split(";")]
    ink, paper, attributes = pen
    while codes:
        code = codes.pop(0)
        if code == 0:
            ink, paper, attributes = _PLAIN
        elif code in _ATTRIBUTES:
            attributes |= {_ATTRIBUTES[code]}
        elif code in _ENDS:
            attributes -= set(_ENDS[code])
        elif code in (38, 48):
            colour = _extended(codes)
            ink, paper = (colour, paper) if code == 38 else (ink, colour)
        elif code in (39, 49):
            ink, paper = (None, paper) if code == 39 else (ink, None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            ink = Color.from_ansi(code - 30 if code < 90 else code - 82)
        elif 40 <= code <= 47 or 100 <= code <= 107:
            paper = Color.from_ansi(code - 40 if code < 100 else code - 92)
    return _Pen(ink, paper, attributes)


def _extended(codes: list[int]) -> Color | None:
    """Takes the parameters of `38` or `48` from the front of `codes`."""
    kind = codes.pop(0) if codes else 0
    if kind == 5 and codes:
        number = codes.pop(0)
        return Color.from_ansi(number) if number < 256 else None
    if kind == 2 and len(codes) >= 3:
        red, green, blue = codes[:3]
        del codes[:3]
        return Color.from_rgb(red, green, blue) if max(red, green, blue) < 256 else None
    return None
