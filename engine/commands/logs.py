"""`rankdeck logs`: the output of ranks, in the order in which they wrote it; on request, a part of it."""

import asyncio
import re
import sys
from collections.abc import Iterable

import msgspec

from engine.client.run import LocalRun
from engine.commands.follow import POLL, wait_settled, write_chunk
from engine.commands.tail import Chunk, Follower
from engine.core.errors import UsageError
from engine.core.log_levels import LEVELS, LevelReader
from engine.core.views.view import Snapshot
from engine.runs.log_order import read_order
from engine.runs.paths import Stream
from engine.runs.replay import stored_snapshot


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines are printed. None: all."""

    rank: int | None = None
    attempt: int | None = None
    since: float | None = None  # seconds since the epoch
    grep: re.Pattern[bytes] | None = None
    level: str | None = None  # the least serious one of `LEVELS`
    split: bool = False
    """Stderr goes to stderr, and bytes are unchanged; otherwise all lines go to stdout, and bars are their last state."""


class _Filter:
    """Chooses lines of chunks, which come in the order of each file."""

    def __init__(self, wanted: Wanted) -> None:
        self._since, self._grep = wanted.since, wanted.grep
        self._least = 0 if wanted.level is None else LEVELS.index(wanted.level)
        self._levels: dict[tuple[int, Stream], LevelReader] = {}

    def chosen(self, chunks: Iterable[Chunk]) -> Iterable[Chunk]:
        """The chunks with only the lines that are wanted."""
        if self._since is None and self._grep is None and not self._least:
            return chunks
        return filter(None, map(self._lines, chunks))

    def _lines(self, chunk: Chunk) -> Chunk | None:
        if b"\r" in chunk.data:  # it ends no line
            lines = [line + b"\n" for line in chunk.data.removesuffix(b"\n").split(b"\n")]
        else:
            lines = chunk.data.splitlines(keepends=True)
        if self._least:
            reader = self._levels.setdefault((chunk.rank, chunk.stream), LevelReader())
            lines = [line for line in lines if reader.level(line) >= self._least]
        if self._since is not None and chunk.at < self._since:
            return None  # after the levels, which depend on the lines before
        if self._grep is not None:
            lines = [line for line in lines if self._grep.search(line.rstrip(b"\r\n"))]
        return chunk._replace(data=b"".join(lines)) if lines else None


async def print_logs(run: LocalRun, wanted: Wanted, *, follow: bool) -> int:
    """Prints what the ranks of a run wrote. `follow`: go on until the run ends, or holds. Raises UsageError: there is no such rank or attempt, or the
    times of its lines are not known."""
    snapshot = stored_snapshot(run.paths)
    ranks, newest = snapshot.run.world_size, snapshot.run.attempt
    if wanted.rank is not None and wanted.rank >= ranks:
        raise UsageError(f"{run.run} has no rank {wanted.rank}", hint=f"its ranks are 0 to {ranks - 1}")
    attempt = newest if wanted.attempt is None else wanted.attempt
    if attempt > newest:
        raise UsageError(f"{run.run} has no attempt {attempt}", hint=f"the newest is {newest}")
    order = run.paths.order(attempt)
    if wanted.since is not None and not follow and not order.exists() and run.paths.attempt(attempt).exists():
        raise UsageError(f"the times at which the ranks of {run.run} wrote are not known", hint="leave --since out")
    chosen_ranks = list(range(ranks)) if wanted.rank is None else [wanted.rank]
    follower = Follower(run.paths, attempt, chosen_ranks, final=not wanted.split)
    chosen = _Filter(wanted).chosen
    try:
        ended = asyncio.create_task(wait_settled(run)) if follow else None
        _print(chosen(follower.replay(read_order(order, ranks))), snapshot, wanted)
        while ended is not None and not ended.done():
            _print(chosen(follower.poll()), snapshot, wanted)
            await asyncio.sleep(0 if follower.behind else POLL)
        _print(chosen(follower.drain()), snapshot, wanted)
    finally:
        follower.close()
    return 0


def _print(chunks: Iterable[Chunk], snapshot: Snapshot, wanted: Wanted) -> None:
    for chunk in chunks:
        prefix = "" if wanted.rank is not None else f"[r{chunk.rank} {snapshot.ranks[chunk.rank].node}] "
        if wanted.split:
            write_chunk(chunk, prefix)
        else:
            whole = chunk.data if chunk.data.endswith(b"\n") else chunk.data + b"\n"
            write_chunk(chunk._replace(data=whole, stream="out"), prefix)
    sys.stdout.flush()
    sys.stderr.flush()
