"""The output of ranks, as lines of one or many growing files of any size: the model behind the log view. `MergedLog.fetch` does the
reading and may wait for a file server, so it is called in a `LogReader`'s thread; `MergedLog.apply` and everything else only touch
memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from engine.client.protocols import LogOrder
from tui.data.log.file import BLOCK, LogFile
from tui.data.log.filter import LogFilter
from tui.data.log.folding import Folding, Line

HISTORY = 5_000  # lines of one file that are loaded when it is opened
MAX_HISTORY = 20_000  # lines that are loaded in all when many files are opened as one

MAX_LINES = 100_000
MAX_BYTES = 32 << 20
"""Limits of the lines in memory. Beyond them the far end is dropped, and read again when somebody scrolls there."""

CHUNK = 256 << 10  # bytes that one request reads of all files together, so that no request takes long
MAX_PARTIALS = 16  # unfinished lines that are shown at once

FILTERED_READS, ENOUGH = 15, 200  # further reads for one request with a filter, and lines after which none is needed

Where = Literal["newer", "older", "start", "end"]
"""Where to read: after the lines in memory, before them, at the beginning or at the end of everything."""


class Place(NamedTuple):
    """A line of a merged log: the index of its file, and the offset of its beginning there."""

    source: int
    offset: int


class Batch(NamedTuple):
    where: Where | Place
    lines: list[Line]
    partials: list[Line]
    more: bool  # whether there are more lines after these
    has_older: bool
    place: int = 0  # of the lines around a place, the index of the one that was asked for
    changed: Mapping[int, Line] = {}  # lines held already that more ranks have printed now, by number


class MergedLog:
    """Several files as one log, in memory that does not grow for ever.

    Lines stand in the order in which they were written. If the order is unknown, the lines that were in the files when they were opened
    stand file by file. The file that was written last comes last. A line whose end is still to come stands below all others until it comes.

    Args: order: order in which they were written; None: unknown. shown: which lines are held. folds: holds a line only once if several
    ranks have printed it.
    """

    def __init__(
        self,
        sources: Sequence[LogFile],
        order: LogOrder | None = None,
        shown: LogFilter | None = None,
        *,
        folds: bool = False,
    ) -> None:
        self.sources = tuple(sources)
        self.filter = shown or LogFilter()
        self.folds = folds
        self._folding = self._new_folding()
        self._keeps = self.filter.reader()
        self._order = order
        self._by_time = False
        self._written: dict[int, float] = {}  # when each file was last written to when that was first asked
        self.ranks = tuple(sorted({source.rank for source in sources if source.rank is not None}))
        self.has_stderr = any(source.stream == "err" for source in sources)
        self.lines: list[Line] = []
        self.partials: list[Line] = []
        self.first = 0  # number of `lines[0]`. A line keeps its number while lines before it come and go.
        self.has_older = False
        self.caught_up = False  # whether everything that was in the files at the last request is held
        self._bytes = 0
        self._opened = False
        self._turn = 0
        self._pending: dict[int, bytes] = {}

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= MAX_LINES or self._bytes >= MAX_BYTES

    # Called in the reader's thread.

    def fetch(self, where: Where | Place) -> Batch:
        """Reads. May wait for a file server. `where`: the lines to read; a place: the lines around it. Before anything was read, `newer`
        and `older` mean the end."""
        self.refresh()
        if isinstance(where, Place):
            lines, more = self._around(where)
        elif where == "start":
            for source in self.sources:
                source.rewind()
            lines, more = self._forward()
        elif where == "end" or not self._opened:
            where, lines, more = "end", self._kept(self._tails()), False
        elif where == "older":
            kept = self._kept(self._older(), older=True)
            for _ in range(FILTERED_READS):
                if len(kept) >= ENOUGH or self.filter.is_empty or not any(source.has_older for source in self.sources):
                    break
                kept[:0] = self._kept(self._older(), older=True)
            lines, more = kept, False
        else:
            lines, more = self._forward()
            if any(source.was_replaced for source in self.sources):
                where, lines, more = "end", self._kept(self._tails()), False
        self._opened = True
        lines, changed = self._folded(lines, where)
        place = _index(lines, where) if isinstance(where, Place) else None
        has_older = any(source.has_older for source in self.sources)
        return Batch(where, lines, self._partials(), more, has_older, place or 0, changed)

    def _new_folding(self) -> Folding:
        return Folding([source.rank for source in self.sources])

    def _folded(self, lines: list[Line], where: Where | Place) -> tuple[list[Line], Mapping[int, Line]]:
        """The lines that stay if lines that several ranks have printed are held once, and the changes of held lines."""
        if not self.folds:
            return lines, {}
        if where == "newer":
            return self._folding.fold(lines, self.first + len(self.lines))
        folding = self._new_folding()
        if where != "older":
            self._folding = folding
        return folding.fold(lines, self.first + (0 if where == "older" else len(self.lines)))

    def _kept(self, lines: list[Line], *, older: bool = False) -> list[Line]:
        """The lines that the filter lets through. `older`: lines that were read later follow them."""
        if self.filter.is_empty:
            return lines
        keeps = self.filter.reader() if older else self._keeps
        return [line for line in lines if keeps(line.source, line.data)]

    def _forward(self) -> tuple[list[Line], bool]:
        """Lines after the lines read, and whether there are more."""
        lines, more = self._newer()
        lines = self._kept(lines)
        for _ in range(FILTERED_READS):
            if len(lines) >= ENOUGH or self.filter.is_empty or not more:
                break
            others, more = self._newer()
            lines += self._kept(others)
        return lines, more

    def refresh(self) -> None:
        """Takes in new parts of the order."""
        self._by_time = self._order is not None and self._order.refresh()

    def copy(self, shown: LogFilter | None = None, *, folds: bool | None = None) -> MergedLog:
        """The same files, of which nothing was read. `shown` and `folds`: others; None: the same."""
        files = [source.copy() for source in self.sources]
        return MergedLog(files, self._order, shown or self.filter, folds=self.folds if folds is None else folds)

    def _around(self, place: Place) -> tuple[list[Line], bool]:
        """The lines before and after a place, and whether there is more after them."""
        at = self.position(place)
        for index, source in enumerate(self.sources):
            source.seek(place.offset if index == place.source else self.size_before(index, at))
        lines = self._kept(self._sorted(self._older()), older=True)
        self._keeps = self.filter.reader()
        after, more = self._forward()
        return lines + after, more

    def position(self, place: Place) -> float:
        """A number that grows with the lines of the log."""
        source = self.sources[place.source]
        if self._by_time and self._order is not None and source.rank is not None:
            return self._order.position(source.rank, source.stream, place.offset + 1)
        return self._last_written(place.source)

    def size_before(self, index: int, position: float) -> int:
        """Offset in a file up to which its lines stand before a position."""
        source = self.sources[index]
        if self._by_time and self._order is not None and source.rank is not None:
            return self._order.size(source.rank, source.stream, position)
        return source.size() if self._last_written(index) < position else 0

    def _last_written(self, index: int) -> float:
        if index not in self._written:
            self.sources[index].size()
            self._written[index] = self.sources[index].written_at
        return self._written[index]

    def _sorted(self, lines: list[Line]) -> list[Line]:
        return sorted(lines, key=self._line_position) if len(self.sources) > 1 else lines

    def _line_position(self, line: Line) -> float:
        return self.position(Place(line.source, max(0, line.end - 1)))

    def _tails(self) -> list[Line]:
        each = min(HISTORY, max(50, MAX_HISTORY // max(1, len(self.sources))))
        tails = [(source, index, source.tail(each)) for index, source in enumerate(self.sources)]
        tails.sort(key=lambda tail: tail[0].written_at)
        return self._from_common_begin([Line(index, *piece) for _, index, pieces in tails for piece in pieces])

    def _older(self) -> list[Line]:
        wanted = [(index, source) for index, source in enumerate(self.sources) if source.has_older]
        share = max(BLOCK // 8, CHUNK // max(1, len(wanted)))
        return self._from_common_begin(
            [Line(index, *piece) for index, source in wanted for piece in source.older(share)]
        )

    def _from_common_begin(self, lines: list[Line]) -> list[Line]:
        """The lines in order, without those before which a line of another file was not read yet."""
        if not self._by_time:
            return lines
        lines = self._sorted(lines)
        firsts: dict[int, int] = {}
        for index, line in enumerate(lines):
            firsts.setdefault(line.source, index)
        begin = max((index for source, index in firsts.items() if self.sources[source].has_older), default=0)
        for source, end in {line.source: line.end for line in lines[:begin]}.items():
            self.sources[source].forget_before(end)
        return lines[begin:]

    def _newer(self) -> tuple[list[Line], bool]:
        lines: list[Line] = []
        behind: set[int] = set()
        count = len(self.sources)
        share = CHUNK // max(1, min(8, count))
        begins = [source.next_line for source in self.sources]
        for step in range(count):
            index = (self._turn + step) % count
            pieces, more = self.sources[index].newer(share)
            lines += [Line(index, *piece) for piece in pieces]
            if more:
                behind.add(index)
                if not self._by_time:
                    self._turn = index + 1
                    return lines, True
        if self._by_time:
            lines = self._to_common_end(self._sorted(lines), behind, begins)
        return lines, bool(behind)

    def _to_common_end(self, lines: list[Line], behind: set[int], begins: list[int]) -> list[Line]:
        """The lines without those before which a line of a file in `behind` was not read yet. `behind`: indices of files. `begins`: where
        in each file its lines here begin."""
        if not behind or len(self.sources) == 1:
            return lines
        lasts: dict[int, int] = {line.source: index for index, line in enumerate(lines)}
        end = min((lasts[source] for source in behind if source in lasts), default=len(lines) - 1) + 1
        kept = {line.source: line.end for line in lines[:end]}
        for source in {line.source for line in lines[end:]}:
            self.sources[source].forget_after(kept.get(source, begins[source]))
        return lines[:end]

    def _partials(self) -> list[Line]:
        """Lines that are still being written, the one that changed last at the end; not one whose end only was not read yet."""
        for index, source in enumerate(self.sources):
            partial = b"" if source.is_behind else source.partial
            if self._pending.get(index) != partial:
                self._pending.pop(index, None)
                if partial:
                    self._pending[index] = partial
        partials = [Line(index, data, 0) for index, data in self._pending.items()]
        return self._kept(partials, older=True)[-MAX_PARTIALS:]

    # Called in the app's thread.

    def apply(self, batch: Batch) -> None:
        """Takes in a batch, in the order of the requests."""
        if batch.where == "older":
            self.lines[:0] = batch.lines
            self.first -= len(batch.lines)
        elif batch.where == "newer":
            self.lines += batch.lines
        else:
            self.first += len(self.lines)
            self.lines = batch.lines
            self._bytes = 0
        for number, line in batch.changed.items():
            if number >= self.first:
                self.lines[number - self.first] = line
        self._bytes += sum(len(line.data) for line in batch.lines)
        self.partials = batch.partials
        self.has_older = batch.has_older
        if batch.where != "older":
            self.caught_up = not batch.more

    def index(self, place: Place) -> int | None:
        """The index in `lines` of the line at a place; None: it is not held."""
        if not self.sources[place.source].holds(place.offset):
            return None
        return _index(self.lines, place)

    def trim(self, most: int) -> int:
        """Drops the oldest lines of a full log, at most `most`, and returns how many. Not while a request is under way."""
        if not self.is_full:
            return 0
        dropped = self.lines[: min(most, max(len(self.lines) // 10, len(self.lines) - MAX_LINES))]
        for source, end in dict(end for line in dropped for end in line.ends()).items():
            self.sources[source].forget_before(end)
        del self.lines[: len(dropped)]
        self.first += len(dropped)
        self._bytes -= sum(len(line.data) for line in dropped)
        self.has_older |= bool(dropped)
        return len(dropped)


def _index(lines: list[Line], place: Place) -> int | None:
    """The index of the line at a place, or of the one that follows it in the same file."""
    ends = (
        (line.end if line.source == place.source else line.others.get(place.source, 0), index)
        for index, line in enumerate(lines)
        if line.source == place.source or place.source in line.others
    )
    return min((end for end in ends if end[0] > place.offset), default=(0, None))[1]
