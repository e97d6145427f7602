"""Reads the files of ranks as they grow: metrics, the newest line of output, sizes. Stores the output of other machines.

Files that have grown are read in slices, one after the other, and the event loop runs in between: a rank that prints
without end delays only its own numbers.
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.core.metrics.event_records import Scalar
from engine.core.metrics.lines.formats import LineFormats
from engine.core.metrics.lines.names import Names
from engine.core.metrics.lines.own_patterns import OwnPatterns
from engine.core.metrics.lines.reader import MetricReader
from engine.core.metrics.progress import MAX_KEYS, RankProgress, take_record
from engine.core.metrics.readings import take_lines, take_scalars
from engine.core.metrics.resources import MOST_RANKS
from engine.core.metrics.series import Point, SeriesSet
from engine.core.metrics.stretches import Stretches
from engine.core.run import events as ev
from engine.linux.files import replace_file
from engine.runs.foreign.event_files import tracker_of
from engine.runs.log_order import PAUSE, OrderWriter, written_before
from engine.runs.record import find_value
from engine.runs.replay import SavedSeries
from engine.supervisor.output.last_output import LastOutput
from engine.supervisor.output.rank_files import KINDS, SLICE, GrowingFile, Kind, OpenFiles, size_of
from engine.supervisor.run import SupervisedRun

TURN = 0.005
"""Seconds of reading before other tasks run. One slice would be too little: hundreds of links run in between, and each reports the
growth of many files."""

DRAIN_TIME = 1.0  # longest seconds that the end of an attempt waits for output that is printed faster than read
FRESH_POINTS = 20_000  # newest points that are kept for subscribers; one that falls behind further gets a new snapshot
MIN_KEYS, ALL_KEYS = 8, 2048  # curves of a rank at least, and of all at most: one has 50 KB, and goes to all front ends
LAST_LINE = 400  # bytes of a rank's newest line that are kept for the table
FILE_WORDS = {"out": "stdout", "err": "stderr", "metrics": "metrics"}  # names of a rank's files in messages

ELASTIC_WORDS = ("waiting", "joining", "joined")
"""Reports of ranks of `rankdeck.elastic`: they wait for the next generation, wait for the others to join this one, have joined it."""


class Ingest:
    """Follows the files of a run's current attempt."""

    def __init__(self, run: SupervisedRun) -> None:
        self._run, self._paths = run, run.paths
        paths, world_size, metrics = run.paths, run.plan.world_size, run.plan.metrics
        self._own_patterns, self._patterns = OwnPatterns(self._take_slow_pattern), metrics.patterns
        self._formats = LineFormats(Names(loss=metrics.loss, step=metrics.step, ignore=metrics.ignore))
        self._most_keys = max(MIN_KEYS, min(MAX_KEYS, ALL_KEYS // world_size))
        self.attempt = 0
        self.progress = [RankProgress() for _ in range(world_size)]
        self.series = SeriesSet()
        self.stretches = Stretches()
        self.points: deque[Point] = deque(maxlen=FRESH_POINTS)
        self.points_seen = 0
        """Points that there ever were; `points` holds the newest of them."""
        self._order = OrderWriter(paths.order(self.attempt))
        self._files: dict[tuple[int, Kind], GrowingFile] = {}
        self._open = OpenFiles()
        self._failed: set[tuple[int, Kind]] = set()  # files of this attempt that are not read any more
        self._readers: dict[tuple[int, Kind], MetricReader] = {}
        self._partial: dict[int, bytes] = {}
        self._tracked: dict[str, int] = {}  # how far files of trackers were read
        self.last = LastOutput(paths, lambda rank: self.progress[rank])
        self._stored: dict[int, list[int]] = {}
        self._grown: deque[tuple[int, Kind]] = deque()
        self._wake = asyncio.Event()
        self._changed_since_save = False
        saved = find_value(paths.series, SavedSeries)
        if saved is None or len(saved.progress) != world_size:
            return
        self.attempt, self.progress, self.series = saved.attempt, saved.progress, SeriesSet(saved.series)
        self.stretches = Stretches(saved.stretches, saved.attempt)
        self._tracked, self.last.attempt = saved.files, saved.attempt
        self._order = OrderWriter(self._paths.order(self.attempt))
        for name, offset in saved.offsets.items():
            rank, _, suffix = name.partition(".")
            for kind in KINDS:
                if kind == suffix and rank.isdecimal() and int(rank) < len(saved.progress):
                    file = self._file(int(rank), kind)
                    file.offset = file.size = offset

    def save(self) -> None:
        """Writes `series.json`: curves, newest numbers and offsets, if anything was read since the last time."""
        self._order.flush()
        if not self._changed_since_save:
            return
        # Metrics only to the last complete record. A line of output that is read in two parts does no harm.
        offsets = {
            f"{rank}.{kind}": file.offset - (len(self._partial.get(rank, b"")) if kind == "metrics" else 0)
            for (rank, kind), file in self._files.items()
        }
        saved = SavedSeries(
            attempt=self.attempt,
            offsets=offsets,
            files=self._tracked,
            progress=self.progress,
            series=self.series.dump(),
            stretches=self.stretches.known,
        )
        replace_file(self._paths.series, msgspec.json.encode(saved))
        self._changed_since_save = False

    def start_attempt(self, attempt: int) -> None:
        """Switches to the files of an attempt. Curves continue; the newest numbers start again."""
        if attempt == self.attempt:
            return
        self._order.close()
        self.attempt, self._order = attempt, OrderWriter(self._paths.order(attempt))
        self._open.clear()
        for of_attempt in (self._files, self._failed, self._readers, self._partial, self._stored, self._grown):
            of_attempt.clear()
        self.last.start_attempt(attempt)
        self.stretches.start_attempt(attempt)
        self.progress = [
            RankProgress(
                steps=old.steps, checkpoint=old.checkpoint, checkpoint_at=old.checkpoint_at, first_epoch=old.first_epoch
            )
            for old in self.progress
        ]

    def _file(self, rank: int, kind: Kind) -> GrowingFile:
        key = (rank, kind)
        if key not in self._files:
            self._files[key] = GrowingFile(self._paths.rank_file(self.attempt, rank, kind))
        return self._files[key]

    def take_sizes(self, attempt: int, sizes: Iterable[Sequence[int]]) -> None:
        """Takes the sizes of files that an agent reports: `[rank, out, err, metrics]` each."""
        if attempt != self.attempt:
            return
        for rank, out, err, metrics in sizes:
            progress = self.progress[rank]
            if (out, err) != (progress.out_size, progress.err_size):
                self._note_order(rank, progress, out, err)
                progress.out_size, progress.err_size, progress.seen = out, err, time.time()
                self._run.note_change(rank)
            for kind, size in zip(KINDS, (out, err, metrics), strict=True):
                file = self._file(rank, kind)
                if size < file.offset and size_of(file.path) < file.offset:
                    file.offset = file.size = 0  # somebody has truncated it
                    self._readers.pop((rank, kind), None)
                    if kind == "metrics":
                        self._partial.pop(rank, None)
                if size > file.size and file.size == file.offset:
                    if kind == "out":
                        self._grown.append((rank, kind))
                    else:  # metrics first: what is logged is not taken from the output too; then bars, which have the step of
                        self._grown.appendleft((rank, kind))  # a line on stdout if they were drawn again after it
                file.size = max(size, file.size)
        self._wake.set()

    def _note_order(self, rank: int, progress: RankProgress, out: int, err: int) -> None:
        """Notes how far the output of a rank has grown."""
        grown = [(0, out)] if out > progress.out_size else []
        grown += [(1, err)] if err > progress.err_size else []
        if len(grown) == 2:
            files = [self._paths.log(self.attempt, rank, stream) for stream in ("out", "err")]
            if written_before(files[1], files[0]):
                grown.reverse()
        for stream, size in grown:
            self._order.note(rank, stream, size, time.time())

    def take_data(self, rank: int, stream: int, offset: int, data: bytes) -> bool:
        """Stores the output of a rank on another machine. `stream`: an index into `KINDS`. `offset`: where in the rank's file the bytes were. Returns False
        if bytes before them are missing; then they are not stored. Raises OSError: not all of them could be stored."""
        sizes = self.stored_sizes(rank)
        if offset > sizes[stream]:
            return False
        data = data[sizes[stream] - offset :]
        try:
            self._open.append(self._file(rank, KINDS[stream]).path, data)
        except OSError:
            del self._stored[rank]  # a part of it may be there
            raise
        sizes[stream] += len(data)
        self.take_sizes(self.attempt, [[rank, *sizes]])
        return True

    def stored_sizes(self, rank: int) -> list[int]:
        """Bytes of each of a rank's files that are stored here, in the order of `KINDS`."""
        if rank not in self._stored:
            self._stored[rank] = [size_of(self._file(rank, kind).path) for kind in KINDS]
        return self._stored[rank]

    async def run(self) -> None:
        """Reads until it is cancelled."""
        while True:
            if not self._grown:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE if self._order.has_unwritten else None):
                        await self._wake.wait()
                if not self._grown:
                    self._order.flush()
                    continue
            until = time.monotonic() + TURN
            while self.read_slice() and time.monotonic() < until:
                pass
            await asyncio.sleep(0)

    def read_slice(self) -> bool:
        """Reads one slice of one file that has grown. Returns whether there was any."""
        if not self._grown:
            return False
        rank, kind = key = self._grown.popleft()
        file = self._file(rank, kind)
        try:
            data = self._open.read(file, min(SLICE, file.size - file.offset))
        except OSError:
            file.offset = file.size
            return True
        file.offset += len(data)
        if not data:
            file.size = file.offset
        if file.offset < file.size:
            self._grown.append(key)
        if data and key not in self._failed:
            self._changed_since_save = True
            self._take(rank, kind, data)
        return True

    def _take(self, rank: int, kind: Kind, data: bytes) -> None:
        """Processes new data of a rank. An exception ends only the reading of this file."""
        moves: list[tuple[str, str, int, int | None]] = []
        try:
            is_record = kind == "metrics"
            self._add(rank, self._take_records(rank, data, moves) if is_record else self._take_output(rank, kind, data))
        except Exception as error:  # noqa: BLE001 - ranks and profiles decide what is read
            self._failed.add((rank, kind))
            what = f"no numbers are read from {FILE_WORDS[kind]}"
            self._run.take_failed_reading(self._run.plan.places[rank].node, what, error)
            return
        for word, over, generation, step in moves:
            about: dict[str, Any] = {"at": time.time(), "attempt": self.attempt, "rank": rank, "generation": generation}
            if word == "joined":
                self._run.handle(ev.RankJoined(step=step, over=over, **about))
            elif generation or self._run.state.generation:  # before the first rejoin all ranks are in one generation
                self._run.handle(ev.RankWaiting(**about))

    def _take_slow_pattern(self, pattern: str) -> None:
        text = f"metrics.patterns: {pattern!r} takes too long, and is not used any more"
        self._run.warn(self._run.head, "output", text)

    def _add(self, rank: int, points: list[Point]) -> None:
        self._keep(points)
        self._run.note_change(rank)

    def _keep(self, points: list[Point]) -> None:
        for point in points:
            self.series.append(point)
        self.points.extend(points)
        self.points_seen += len(points)

    def file_offset(self, path: Path) -> int:
        """How far a file of a tracker was read."""
        return self._tracked.get(str(path), 0)

    def take_scalars(
        self, rank: int, path: Path, found: list[Scalar], offset: int, progress: RankProgress | None = None
    ) -> None:
        """Takes scalars of a file that a rank's tracker writes. `found`: its new values. `offset`: how far it is read with them. `progress`: the
        rank's in the attempt that has written the file; None: in this one."""
        self._tracked[str(path)] = offset
        self._changed_since_save = True
        own = self.progress[rank] if progress is None else progress
        names, is_echo = self._formats.names, tracker_of(path) == "trainer"
        points = take_scalars(rank, own, found, names, time.time(), self._most_keys, is_echo=is_echo)
        self._add(rank, self._with_steps(rank, points) if progress is None else points)

    def take_resources(self, rank: int, values: Mapping[str, int | None]) -> None:
        """Takes the resources that a rank uses now, unless there are too many ranks for such curves."""
        if len(self.progress) <= MOST_RANKS:
            now = time.time()
            self._changed_since_save = True
            self._keep([Point(rank, key, now, None, value) for key, value in values.items() if value is not None])

    def catch_up(self) -> None:
        """Reads the rest of all metrics files, as far as it was reported; they are short."""
        others = [key for key in self._grown if key[1] != "metrics"]
        if len(others) < len(self._grown):
            self._grown = deque(key for key in self._grown if key[1] == "metrics")
            while self.read_slice():
                pass
            self._grown.extend(others)

    def drain(self, finished: Iterable[int]) -> None:
        """Reads the rest of all files, as far as it was reported. After `DRAIN_TIME`, only the newest part of each. `finished`: ranks that ended with
        status 0, so that they have written their last line whole, even without a line feed."""
        deadline = time.monotonic() + DRAIN_TIME
        while time.monotonic() < deadline and self.read_slice():
            pass
        self._order.flush()
        for rank, kind in self._grown:
            file = self._file(rank, kind)
            file.offset = max(file.offset, file.size - SLICE)
        while self.read_slice():
            pass
        kinds: tuple[Kind, ...] = ("out", "err")
        for rank, kind in itertools.product(finished, kinds):
            if (rank, kind) in self._readers and (rank, kind) not in self._failed:
                self._take(rank, kind, b"\n")

    def _take_records(self, rank: int, data: bytes, moves: list[tuple[str, str, int, int | None]]) -> list[Point]:
        """Processes complete lines of a metrics file. Adds their reports about a rejoin to `moves`."""
        lines = (self._partial.pop(rank, b"") + data).split(b"\n")
        if lines[-1]:
            self._partial[rank] = lines[-1][-SLICE:]
        points: list[Point] = []
        for line in lines[:-1]:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # a rank may write anything
            if isinstance(record, dict):
                points += take_record(rank, self.progress[rank], record)
                self.stretches.take_record(time.time(), rank, record, self.progress[rank].step)
                word, generation, over = record.get("elastic"), record.get("generation"), record.get("over")
                if word in ELASTIC_WORDS and type(generation) is int and 0 <= generation < 1 << 31:
                    moves.append((word, "gloo" if over == "gloo" else "", generation, self.progress[rank].step))
        return points

    def _take_output(self, rank: int, kind: Kind, data: bytes) -> list[Point]:
        progress = self.progress[rank]
        ends = reversed(data[-LAST_LINE * 4 :].replace(b"\r", b"\n").split(b"\n"))
        if newest := next((line for line in ends if line.strip()), b""):
            progress.last_line = newest[:LAST_LINE].decode(errors="replace")
        reader = self._readers.get((rank, kind))
        if reader is None:
            reader = self._readers[rank, kind] = MetricReader(self._patterns, self._formats, self._own_patterns.find)
        return self._with_steps(rank, take_lines(rank, progress, time.time(), reader.feed(data), self._most_keys))

    def _with_steps(self, rank: int, points: list[Point]) -> list[Point]:
        """Notes the times of the steps of points, and of the rank's newest one."""
        for point in points:
            self.stretches.take(point.at, rank, point.step)
        self.stretches.take(time.time(), rank, self.progress[rank].step)
        return points
