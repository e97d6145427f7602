"""Reads the output of ranks, so that unchanged scripts get curves. A line is read into fields (`fields`), the fields get a meaning
(`meaning`), and lines of a shape that was seen before are read by place (`formats`). A chunk of many similar lines is thinned first
(`flood`). The user's own patterns have priority."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from engine.core.metrics.lines.fields import OF_DEVICE
from engine.core.metrics.lines.flood import thin
from engine.core.metrics.lines.formats import (
    MAX_SHAPES,
    Heading,
    Line,
    LineFormats,
    Recipe,
    read_line,
    shapes_of,
    whole,
)
from engine.core.metrics.lines.meaning import Format
from engine.core.metrics.lines.names import Names
from engine.core.metrics.lines.own_patterns import Hit, OwnPatterns
from engine.core.metrics.lines.tables import CLOSED, Section, Table, row_text

MAX_LINE = 65_536  # bytes of an unfinished line that are kept; a longer line is skipped

MAX_NEW = 32
"""Lines of unknown shapes of one chunk that are read, and one more for each 50 lines. More lines are a flood of different texts, such as
names of files. Then some of them, evenly spread, and the last one are read."""

LEAST_NEW = 2  # The least number, after some chunks in a row that had more. Each such chunk halves the number.

MANY = 64
"""Lines of one chunk. If it has more, metrics other than the main ones are taken from every eighth line only: a curve shows no more."""

_BRACKET = 120  # bytes of the longest last bracket of a bar
RATES = {"it": "it/s", "samples": "samples/s", "tokens": "tokens/s"}  # keys of the groups of a pattern that are rates
Find = Callable[[str, bytes], Iterable[Hit]]  # finds every value of a user's pattern in whole lines

_DIGIT = re.compile(rb"\.?\d")
_CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-?]*+[ -/]*+[@-~]")
_FRAME_END = b'", line '
_FRAME = rb'[^\n]{0,64}?File "[^"\n]{1,4096}", line \d++[^\n]*+\n'
_SOURCE = re.compile(rb"^(" + _FRAME + rb")(?:\[[^\]\n]{1,64}\]:? )?    [^\n]*", re.MULTILINE)
"""A frame of a traceback and its line of source code, also after a prefix such as `[rank0]: `."""
_LAST_FRAME = re.compile(_FRAME + rb"\Z")
_OWN = Format(kind="own", counter="own:")
_MISSING = object()


class MetricReader:
    """Reads the output of one rank, chunk by chunk. `patterns`: regexes of the profile. Each named group is a metric of that name;
    `step`, `steps`, `epoch`, `epochs` are those of the line; `it`, `samples`, `tokens` are rates per second. `formats`: known formats,
    shared with other readers. `find`: searches with one of the patterns; None: those of one reader, which does not tell of slow ones."""

    def __init__(
        self, patterns: tuple[str, ...] = (), formats: LineFormats | None = None, find: Find | None = None
    ) -> None:
        self._find = find or OwnPatterns(lambda _: None).find
        self._patterns = patterns
        self._formats = formats or LineFormats(Names())
        self._unfinished = bytearray()
        self._giving_up = False
        self._is_drawn_over = False  # whether the unfinished line begins after `\r`
        self._frame = b""  # the last line, where that is a frame of a traceback
        self._section: Section = "training"
        self._total: int | None = None  # of the training's count, when a section of held-out data began
        self._in_object = False  # whether the section ends with a closing bracket
        self._table: Table | None = None
        self._table_section: Section = "training"
        self._no_rows: set[bytes] = set()  # shapes of lines that are no rows of the table
        self._floods = 0  # chunks in a row that had more lines of unknown shapes than are read

    def feed(self, data: bytes) -> list[Line]:
        """Reads the next bytes of the output. `data`: any bytes. A line ends with `\\n` or, in progress bars, with `\\r`; an unfinished
        line is kept for the next call. A bar that is drawn over another one is finished with its last bracket: the next one may come much
        later. Returns what the finished lines say, in order; lines that say nothing are left out."""
        end = len(data) if data.endswith(b"\n") else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end:
            self._is_drawn_over = data[end - 1 : end] == b"\r"
        if self._is_drawn_over:
            last = (self._unfinished[-_BRACKET:] + data[-_BRACKET:]).rstrip(b" ").rpartition(b"[")[2]
            if last.endswith(b"]") and b"/" in last:  # with a rate, not the `[97%]` of other bars
                data += b"\n"
                end, self._is_drawn_over = len(data), False
        if not end:
            self._keep(data)
            return []
        begin = 0
        if self._giving_up:
            begin = min(at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0)
            self._giving_up = False
        text = data if begin == 0 and end == len(data) else data[begin:end]
        if self._unfinished:
            text = bytes(self._unfinished) + text
            self._unfinished.clear()
        if end < len(data):
            self._keep(data[end:])
        return self._read(text)

    def _keep(self, data: bytes) -> None:
        """Keeps an unfinished line, up to `MAX_LINE` bytes."""
        if self._giving_up or len(self._unfinished) + len(data) > MAX_LINE:
            self._giving_up = True
            self._unfinished.clear()
        else:
            self._unfinished += data

    def _read(self, text: bytes) -> list[Line]:
        if b"\x1b" in text:
            text = _CONTROL_SEQUENCE.sub(b"", text)
        if b"\r" in text:
            text = text.replace(b"\r", b"\n")
        if self._frame or _FRAME_END in text:
            text = self._without_sources(text)
        text = thin(text, self._places)
        lines, shapes = text.split(b"\n"), shapes_of(text).split(b"\n")
        shapes.pop()
        own = self._own(text) if self._patterns else {}
        reports = self._formats.may_report
        skipped = self._skipped(lines, shapes) if len(shapes) > MAX_NEW else frozenset()
        found: list[Line] = []
        section = self._section
        known = self._formats.known[section]
        is_many, last = len(shapes) > MANY, len(shapes) - 1
        for place, shape in enumerate(shapes):
            if self._in_object and lines[place].strip() in CLOSED:
                self._section, self._in_object = "training", False
                section, known = "training", self._formats.known["training"]
            recipe = known.get(shape, _MISSING)
            has_row = self._table is not None and shape not in self._no_rows
            if recipe is None and not has_row and place not in own:
                continue
            if recipe is _MISSING and (place in skipped or not reports(lines[place], shape, section)):
                recipe = None
            line = None
            if recipe is not None or has_row:
                is_brief = is_many and place % 8 != 0 and place < last
                if type(recipe) is Recipe and section == "training" and not has_row:
                    try:
                        line = read_line(recipe, lines[place], brief=is_brief)
                    except (ValueError, LookupError):
                        line = self._read_one(lines[place], shape, _MISSING, brief=is_brief)
                else:
                    line = self._read_one(lines[place], shape, recipe, brief=is_brief)
                    if self._section != section:
                        section = self._section
                        known = self._formats.known[section]
                        self._total = next((one.steps for one in reversed(found) if one.steps), self._total)
            if place in own:
                line = _with_own(line, own[place])
            if line is not None:
                found.append(line)
        if found and self._section == "training":
            self._total = found[-1].steps or self._total
        return found

    def _without_sources(self, text: bytes) -> bytes:
        """Empties the lines of source code in tracebacks: `log(step=60)` in one is no report."""
        whole = _SOURCE.sub(rb"\1", self._frame + text)
        before, self._frame = len(self._frame), b""
        if last := _LAST_FRAME.search(whole, whole.rfind(b"\n", 0, -1) + 1):
            self._frame = last[0]
        return whole[before:]

    def _skipped(self, lines: list[bytes], shapes: list[bytes]) -> frozenset[int]:
        """Lines of unknown shapes that are too many to be read."""
        known = self._formats.known[self._section]
        most = max(LEAST_NEW, MAX_NEW >> self._floods) + len(lines) // 50
        new = [place for place, shape in enumerate(shapes) if isinstance(known.get(shape, ""), str)]
        if len(new) <= most:
            self._floods = 0
            return frozenset()
        first = {shapes[place]: place for place in reversed(new)}
        new = sorted(
            place for shape, place in first.items() if self._formats.may_report(lines[place], shape, self._section)
        )
        if len(new) <= most:
            self._floods = 0
            return frozenset()
        self._floods = min(self._floods + 1, 8)
        stride = (len(new) - 1) // most + 1
        return frozenset(new) - frozenset(new[::-stride])

    def _read_one(self, line: bytes, shape: bytes, recipe: object, *, brief: bool = False) -> Line | None:
        found = self._read_in(line, shape, recipe, self._section, brief=brief)
        if self._section in ("held out", "summary") and found is not None and found.format.is_of_training:
            if self._total is not None and found.steps not in (None, self._total):  # another total: the validation's
                rows = self._formats.known["held out table"]
                return self._read_in(line, shape, rows.get(shape, _MISSING), "held out table", brief=brief)
            self._section = "training"
        return found

    def _read_in(self, line: bytes, shape: bytes, recipe: object, section: Section, *, brief: bool) -> Line | None:
        if self._table is not None and shape not in self._no_rows:
            row = row_text(self._table, line.decode("utf-8", "replace"))
            if row is not None:
                line, section = row.encode(), self._table_section
                shape = shapes_of(line)
                recipe = self._formats.known[section].get(shape, _MISSING)
            elif len(self._no_rows) < MAX_SHAPES:
                self._no_rows.add(shape)
        if isinstance(recipe, Recipe):
            try:
                return read_line(recipe, line, brief=brief)
            except (ValueError, LookupError):
                recipe = _MISSING
        if recipe is _MISSING or isinstance(recipe, str):
            recipe = self._formats.learn(line, shape, section)
        if isinstance(recipe, Heading):
            self._section, self._in_object = recipe.section, recipe.is_object and recipe.section != "training"
        if isinstance(recipe, Table):
            self._table_section = "held out table" if self._section == "held out" else "training"
            if recipe != self._table:
                self._table = recipe
                self._no_rows.clear()
        return recipe if isinstance(recipe, Line) else None

    def _places(self, line: bytes) -> list[tuple[str, int]]:
        """Where the numbers stand of which no extreme may be lost. See `thin`."""
        shape = shapes_of(line)
        if self._table is not None and shape not in self._no_rows:
            return []
        found = self._formats.places(line, shape)
        if found is None:
            return []
        for pattern in self._patterns:
            for position, key, _ in self._find(pattern, line + b"\n"):
                digit = _DIGIT.search(line, position)
                if digit and key not in ("steps", "epochs"):
                    found.append((key, digit.start()))
        return found

    def _own(self, text: bytes) -> dict[int, dict[str, float]]:
        """The values of the user's patterns, by the number of their line."""
        hits = sorted(
            (position, key, value) for pattern in self._patterns for position, key, value in self._find(pattern, text)
        )
        found: dict[int, dict[str, float]] = {}
        place = begin = 0
        for position, key, value in hits:
            place += text.count(b"\n", begin, position)
            begin = position
            found.setdefault(place, {}).setdefault(RATES.get(key, key), value)
        return found


def _with_own(line: Line | None, own: dict[str, float]) -> Line:
    """A line with the values of the user's patterns, which win."""
    base = line or Line(_OWN)
    step, steps, epochs = (whole(own.pop(key, None)) for key in ("step", "steps", "epochs"))
    counts = {"step": step, "steps": steps, "epoch": own.pop("epoch", None), "epochs": epochs}
    told: dict[str, Any] = {key: value for key, value in counts.items() if value is not None}
    hidden = RATES.values() if own.keys() & {*RATES.values(), "throughput"} else ()
    values = {key: value for key, value in base.values.items() if key.removesuffix(OF_DEVICE) not in hidden} | own
    return replace(base, format=base.format if step is None else _OWN, values=values, **told)
