"""Searches a whole log, of one file or many, in a thread of its own: the nearest match first, then all others, to count them. It reads
the files again, in blocks from where the search begins, and keeps where the matching lines begin, 8 bytes for each."""

import contextlib
import math
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Literal, NamedTuple

from tui.data.log.file import LogFile
from tui.data.log.filter import LogFilter
from tui.data.log.merged import MergedLog, Place
from tui.data.log.pattern import Pattern

BLOCK = 128 << 10  # bytes that are searched at a time: a regular expression lets no other thread run meanwhile
LONGER = (1 << 20, 8 << 20)  # for a longer line; a line that is still longer is searched in pieces

PAUSE = 0.1  # seconds between two reports of the number of matches
Step = Literal["nearest", "next", "previous"]  # `nearest`: the match before where the search begins, else after it
_Rank = tuple[float, int, int]  # grows with the lines of a log

_END: _Rank = (math.inf, 1 << 62, 0)
_START: _Rank = (-1.0, 0, 0)


class Found(NamedTuple):
    """The state of a search. `asked`: the number of questions that are answered. `place`: the match that was asked for last; None: there
    is none so far. `wrapped`: it was found from the other end of the log. `number`: it is the n-th match of all. `matches`: so far.
    `whole`: all was searched."""

    asked: int = 0
    place: Place | None = None
    wrapped: bool = False
    number: int | None = None
    matches: int = 0
    whole: bool = False


class _Searched(Sequence[int]):
    """The part of one file that was searched, and where lines in it match."""

    def __init__(self, file: LogFile, begin: int, shown: LogFilter) -> None:
        file.seek(begin)
        self._filter = shown
        self.file = file
        self.low = self.high = file.next_line
        self.size = file.size()
        self._before: array[int] = array("Q")  # matches before where the search began, nearest first
        self._after: array[int] = array("Q")

    def __len__(self) -> int:
        return len(self._before) + len(self._after)

    def __getitem__(self, index: int) -> int:  # type: ignore[override]  # no slices
        before = len(self._before)
        return self._before[before - 1 - index] if index < before else self._after[index - before]

    def search(self, pattern: Pattern, *, back: bool) -> None:
        """Searches the block before or after the searched part."""
        if back:
            data, begin = self._before_low()
            self._before.extend(reversed([begin + found for found in self._matches(pattern, data)]))
            self.low = begin
        else:
            self._search_on(pattern)

    def _matches(self, pattern: Pattern, data: bytes) -> Iterable[int]:
        """Where lines of a block begin that match and that the filter of the log lets through."""
        if self._filter.is_empty:
            return pattern.lines(data)
        keeps = self._filter.reader()
        ends = ((begin, data.find(b"\n", begin)) for begin in pattern.lines(data))
        return (begin for begin, end in ends if keeps(0, data[begin : end if end >= 0 else len(data)]))

    def _before_low(self) -> tuple[bytes, int]:
        """Whole lines before the searched part, without the last line feed, and their offset."""
        for most in (BLOCK, *LONGER):
            begin = max(0, self.low - most)
            data = self.file.read_at(begin, self.low - begin)
            start = data.find(b"\n") + 1 if begin else 0
            if start < len(data):
                return data[start:].removesuffix(b"\n"), begin + start
        return data, begin

    def _search_on(self, pattern: Pattern) -> None:
        for most in (BLOCK, *LONGER):
            data = self.file.read_at(self.high, most)
            end = data.rfind(b"\n") + 1
            if end or len(data) < most:
                break
        if not end and len(data) < most:
            self.size = self.high  # a line without its end, which is searched once it has one
            return
        data = data[: end or len(data)]
        self._after.extend(self.high + found for found in self._matches(pattern, data.removesuffix(b"\n")))
        self.high += len(data)


class LogSearch:
    """A search. Its thread is a daemon: a read that hangs must not keep the app from leaving. `log`: only its files, their order and its
    filter are used."""

    def __init__(
        self, log: MergedLog, pattern: Pattern, begin: Place | Literal["start", "end"], told: Callable[[], None]
    ) -> None:
        self.pattern = pattern
        self.found = Found()
        self._log = log
        self._told = told
        self._begin = begin
        self._questions: SimpleQueue[Step | None] = SimpleQueue()
        self._asked: list[Step] = ["nearest"]
        self._files: list[_Searched] = []
        self._told_at = 0.0
        self._closed = False
        threading.Thread(target=self._run, name="log-search", daemon=True).start()

    def ask(self, step: Step) -> None:
        self._questions.put(step)

    def look(self) -> None:
        if self.found.whole and self._questions.empty():
            self._questions.put(None)

    def close(self) -> None:
        self._closed = True
        self._questions.put(None)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._log.refresh()
        self._files = [
            _Searched(source.copy(), self._offset(index), self._log.filter)
            for index, source in enumerate(self._log.sources)
        ]
        self._at = (
            {"start": _START, "end": _END}[self._begin] if isinstance(self._begin, str) else self._rank(self._begin)
        )
        whole = False
        while not self._closed:
            self._take_questions(wait=whole and not self._asked)
            on_first = bool(self._asked) and self._asked[0] == "next"
            whole = not (self._search(back=not on_first) or self._search(back=on_first)) or self.pattern.is_slow
            self._answer(whole=whole)

    def _offset(self, index: int) -> int:
        source, begin = self._log.sources[index], self._begin
        if isinstance(begin, str):
            return 0 if begin == "start" else source.size()
        return begin.offset if begin.source == index else self._log.size_before(index, self._log.position(begin))

    def _take_questions(self, *, wait: bool) -> None:
        with contextlib.suppress(Empty):
            while not self._closed:
                step = self._questions.get(block=wait)
                wait = False
                if step is not None:
                    self._asked.append(step)
                else:
                    self._log.refresh()
                    for searched in self._files:
                        searched.size = searched.file.size()

    def _search(self, *, back: bool) -> bool:
        """Searches the nearest block in one direction. False: nothing is left there."""
        edges = self._edges(back=back)
        if edges:
            self._files[(max(edges) if back else min(edges))[1]].search(self.pattern, back=back)
        return bool(edges)

    def _edges(self, *, back: bool) -> list[_Rank]:
        files = enumerate(self._files)
        if back:
            return [self._rank(Place(index, file.low - 1)) for index, file in files if file.low > 0]
        return [self._rank(Place(index, file.high)) for index, file in files if file.high < file.size]

    def _rank(self, place: Place) -> _Rank:
        return self._log.position(place) if len(self._log.sources) > 1 else 0.0, *place

    def _answer(self, *, whole: bool) -> None:
        """Reports a match that was asked for, or how many there are so far."""
        found = self.found._replace(matches=sum(map(len, self._files)), whole=whole)
        if self._asked and (answer := self._match(self._asked[0], found)) is not None:
            del self._asked[0]
            found = answer._replace(asked=found.asked + 1)
            if answer.place is not None:
                self._at = self._rank(answer.place)
        if found.place is not None and not any(file.low for file in self._files):
            found = found._replace(number=sum(self._matches_before(self._rank(found.place))) + 1)
        now = time.monotonic()
        if found.asked != self.found.asked or (found != self.found and (whole or now - self._told_at >= PAUSE)):
            self.found, self._told_at = found, now
            # The app may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                self._told()

    def _match(self, step: Step, found: Found) -> Found | None:
        """The match that was asked for; None: it is not known yet."""
        before, after = self._before(self._at), self._after(self._at)
        wanted = after if step == "next" else before
        edges = self._edges(back=step != "next")
        edge = (min if step == "next" else max)(edges, default=None)
        if wanted is not None and (edge is None or (wanted < edge if step == "next" else wanted > edge)):
            return found._replace(place=Place(*wanted[1:]), wrapped=False)
        if step == "nearest" and edge is None and after is not None:
            edge = min(self._edges(back=False), default=None)
            return found._replace(place=Place(*after[1:]), wrapped=False) if edge is None or after < edge else None
        if not found.whole:
            return None
        other = self._after(_START) if step == "next" else self._before(_END)
        return found._replace(place=None if other is None else Place(*other[1:]), wrapped=other is not None)

    def _matches_before(self, rank: _Rank, *, at_too: bool = False) -> list[int]:
        """How many matches of each file stand before a line."""
        bisect = bisect_right if at_too else bisect_left
        return [
            bisect(file, rank, key=lambda offset, index=index: self._rank(Place(index, offset)))  # type: ignore[misc]
            for index, file in enumerate(self._files)
        ]

    def _before(self, rank: _Rank) -> _Rank | None:
        counts = enumerate(self._matches_before(rank))
        return max((self._rank(Place(index, self._files[index][n - 1])) for index, n in counts if n), default=None)

    def _after(self, rank: _Rank) -> _Rank | None:
        counts = enumerate(self._matches_before(rank, at_too=True))
        files = self._files
        ranks = (self._rank(Place(index, files[index][n])) for index, n in counts if n < len(files[index]))
        return min(ranks, default=None)
