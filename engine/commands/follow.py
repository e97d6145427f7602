"""Follows a run from the command line: what its ranks print, why it stopped, and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Iterable

import msgspec

from engine.client.engine import LocalRun
from engine.commands.show import close_stdout, end_words, exit_status, narrate, show_failure
from engine.commands.tail import Chunk, Follower
from engine.core.errors import RankdeckError, SupervisorLostError, UsageError
from engine.core.run.state import ENDED_WORDS
from engine.core.terminal_text import terminal_line
from engine.core.views.view import EventLine, Snapshot, Update

POLL = 0.05
"""Seconds between two looks at the ranks' files."""


class Picture:
    """A snapshot that is kept up to date."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def apply(self, message: Snapshot | Update) -> tuple[EventLine, ...]:
        """Takes a message in. Returns the events that are new."""
        if isinstance(message, Snapshot):
            news = message.events[len(self.snapshot.events) :]
            self.snapshot = message
            return news
        ranks = list(self.snapshot.ranks)
        for view in message.ranks:
            ranks[view.rank] = view
        self.snapshot = msgspec.structs.replace(
            self.snapshot,
            run=message.run or self.snapshot.run,
            ranks=tuple(ranks),
            events=self.snapshot.events + message.events,
        )
        return message.events

    @property
    def settled(self) -> bool:
        """Whether the run has ended, or holds and waits for somebody."""
        return self.snapshot.run.state in ENDED_WORDS or self.snapshot.run.state == "holding"


async def pictures(run: LocalRun) -> AsyncGenerator[tuple[Picture, tuple[EventLine, ...]], None]:
    """The run and its new events, until it has ended; a supervisor that was lost is replaced."""
    picture: Picture | None = None
    failures = 0
    while True:
        try:
            async with contextlib.aclosing(run.subscribe()) as messages:
                async for message in messages:
                    failures = 0
                    if picture is None:
                        assert isinstance(message, Snapshot)
                        picture = Picture(message)
                        yield picture, message.events
                    else:
                        yield picture, picture.apply(message)
            return
        except SupervisorLostError:
            failures += 1
            if failures > 3:
                raise
            await asyncio.sleep(0.2)


# --- launch and attach ---------------------------------------------------------------------------------------------------


class _Interrupts:
    """Ctrl-C and its relatives while a run is followed."""

    def __init__(self, run: LocalRun, *, owner: bool) -> None:
        self._run, self._owner = run, owner
        self._interactive = sys.stdin.isatty() and sys.stderr.isatty()
        self._count = 0
        self._asking = False
        self._jobs: set[asyncio.Task[None]] = set()
        self.detached = asyncio.Event()
        self.stopping = False

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGHUP, self.detached.set)

    def _interrupt(self) -> None:
        self._count += 1
        if not self._owner and self._count == 1:
            self.detached.set()
        elif self._count == 1 and self._interactive:
            self._ask()
        else:
            self._stop(at_once=self._count > 2)

    def _terminate(self) -> None:
        if self._owner and not self._interactive:
            self._stop(at_once=False)
        else:
            self.detached.set()

    def _ask(self) -> None:
        self._asking = True
        sys.stderr.write("\nrankdeck: d detach, the run goes on · s stop the run · Enter go on following [Enter] ")
        sys.stderr.flush()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read_answer)

    def _read_answer(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(sys.stdin.fileno())
        answer = os.read(sys.stdin.fileno(), 1024).strip().lower()
        self._asking = False
        if answer[:1] == b"d":
            self.detached.set()
        elif answer[:1] == b"s":
            self._stop(at_once=False)
        else:
            self._count = 0

    def _stop(self, *, at_once: bool) -> None:
        if self._asking:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._asking = False
            sys.stderr.write("\n")
        self.stopping = True
        task = asyncio.get_running_loop().create_task(self._request_stop(at_once=at_once))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _request_stop(self, *, at_once: bool) -> None:
        try:
            narrate(await self._run.stop(at_once=at_once))
        except RankdeckError as error:
            narrate(str(error))

    def stop_for_nobody(self) -> None:
        """A hold waits for a person; without a terminal there is none."""
        if not self.stopping and self._owner and not self._interactive:
            narrate("a rank failed and there is no terminal to hold for: the run is stopped")
            self._stop(at_once=False)


async def watch(run: LocalRun, *, owner: bool = True) -> int:
    """Prints what ranks write and what happens, until the run ends or the user leaves.

    Args:
        run: which.
        owner: Ctrl-C may stop it (`launch`); otherwise it only leaves (`attach`).

    Returns:
        The exit status of the command.
    """
    interrupts = _Interrupts(run, owner=owner)
    interrupts.install()
    following = asyncio.create_task(_follow_run(run, interrupts))
    leaving = asyncio.create_task(interrupts.detached.wait())
    await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
    if following.done():
        leaving.cancel()
        return following.result()
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    narrate(f"{run.run} goes on; come back with: rankdeck attach {run.run}")
    return 0


async def _follow_run(run: LocalRun, interrupts: _Interrupts) -> int:
    printer: _Printer | None = None
    held = False
    async with contextlib.aclosing(pictures(run)) as stream:
        async for picture, events in stream:
            snapshot = picture.snapshot
            printer = printer or _Printer(run, snapshot, interrupts)
            printer.turn_to(snapshot.run.attempt)
            for event in events:
                if event.level != "info":
                    narrate(event.text)
            holding = snapshot.run.state == "holding"
            if holding and not held:
                show_failure(snapshot, err=True)
                interrupts.stop_for_nobody()
            held = holding
    assert printer is not None
    printer.finish()
    narrate(end_words(snapshot))
    if snapshot.run.state == "failed":
        show_failure(snapshot, err=True)
    if snapshot.run.state == "stopped" and interrupts.stopping and snapshot.run.failure is None:
        return 128 + signal.SIGINT
    return exit_status(snapshot)


class _Printer:
    """Prints the files of a run's ranks as they grow, one attempt after the other."""

    def __init__(self, run: LocalRun, snapshot: Snapshot, interrupts: _Interrupts) -> None:
        self._run, self._interrupts = run, interrupts
        self._nodes = [rank.node for rank in snapshot.ranks]
        self._attempt = snapshot.run.attempt
        self._follower = Follower(run.paths, self._attempt, list(range(len(self._nodes))))
        self._task = asyncio.create_task(self._print_for_ever())

    async def _print_for_ever(self) -> None:
        while True:
            self._print(self._follower.poll())
            await asyncio.sleep(0 if self._follower.behind else POLL)

    def turn_to(self, attempt: int) -> None:
        """From now on, the files of this attempt; what is left of earlier ones first, however short they were."""
        while self._attempt < attempt:
            self._print(self._follower.drain())
            self._follower.close()
            self._attempt += 1
            self._follower = Follower(self._run.paths, self._attempt, list(range(len(self._nodes))))

    def finish(self) -> None:
        """Prints what is left."""
        self._task.cancel()
        self._print(self._follower.drain())
        self._follower.close()

    def _print(self, chunks: Iterable[Chunk]) -> None:
        try:
            for chunk in chunks:
                write_chunk(chunk, f"[r{chunk.rank} {self._nodes[chunk.rank]}] ")
            sys.stdout.flush()
            sys.stderr.flush()
        except BrokenPipeError:  # whoever read has gone, as `head` does: the run goes on
            close_stdout()
            self._interrupts.detached.set()


def write_chunk(chunk: Chunk, prefix: str) -> None:
    """Lines of a rank, to the stream that they were written to; a terminal gets nothing but text and colours."""
    stream = sys.stdout if chunk.stream == "out" else sys.stderr
    lines = chunk.data.removesuffix(b"\n")
    if stream.isatty():
        stream.writelines(f"{prefix}{terminal_line(line)}\n" for line in lines.split(b"\n"))
    elif prefix:
        head = prefix.encode()
        stream.buffer.writelines((head, lines.replace(b"\n", b"\n" + head), b"\n"))
    else:
        stream.buffer.write(chunk.data)


# --- logs and wait -------------------------------------------------------------------------------------------------------


async def print_logs(run: LocalRun, *, rank: int | None, attempt: int | None, follow: bool) -> int:
    """`rankdeck logs`."""
    from engine.runs.replay import stored_snapshot

    snapshot = stored_snapshot(run.paths)
    if rank is not None and rank >= snapshot.run.world_size:
        raise UsageError(
            f"there is no rank {rank} in {run.run}", hint=f"it has ranks 0 to {snapshot.run.world_size - 1}"
        )
    chosen = snapshot.run.attempt if attempt is None else attempt
    if chosen > snapshot.run.attempt:
        raise UsageError(f"there is no attempt {chosen} of {run.run}", hint=f"the newest is {snapshot.run.attempt}")
    ranks = list(range(snapshot.run.world_size)) if rank is None else [rank]
    follower = Follower(run.paths, chosen, ranks)
    try:
        ended = asyncio.create_task(_wait_settled(run)) if follow else None
        while ended is not None and not ended.done():
            _print_chunks(follower.poll(), snapshot, single=rank is not None)
            await asyncio.sleep(0 if follower.behind else POLL)
        _print_chunks(follower.drain(), snapshot, single=rank is not None)
    finally:
        follower.close()
    return 0


def _print_chunks(chunks: Iterable[Chunk], snapshot: Snapshot, *, single: bool) -> None:
    for chunk in chunks:
        write_chunk(chunk, "" if single else f"[r{chunk.rank} {snapshot.ranks[chunk.rank].node}] ")
    sys.stdout.flush()
    sys.stderr.flush()


async def _wait_settled(run: LocalRun) -> Snapshot:
    """The run once it has ended, or holds because a rank failed."""
    async with contextlib.aclosing(pictures(run)) as stream:
        async for picture, _ in stream:
            if picture.snapshot.run.state == "holding":
                break
    return picture.snapshot


async def wait_for_end(run: LocalRun, *, seconds: float | None, as_json: bool) -> int:
    """`rankdeck wait`."""
    try:
        async with asyncio.timeout(seconds):
            snapshot = await _wait_settled(run)
    except TimeoutError:
        narrate(f"{run.run} has not ended within {seconds:g} s")
        return 124
    status = exit_status(snapshot)
    if as_json:
        sys.stdout.write(
            msgspec.json.encode({"run": run.run, "state": snapshot.run.state, "exit": status}).decode() + "\n"
        )
    else:
        sys.stdout.write(terminal_line(end_words(snapshot), colour=False) + "\n")
    return status
