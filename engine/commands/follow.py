"""Follows a run: prints what its ranks write, its events and why it ended. For `launch`, `attach`, `logs`, `wait`, `bench`."""

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from functools import partial

import msgspec

from engine.client.run import LocalRun, waits_for
from engine.commands.bars import LiveBars
from engine.commands.interrupts import FollowInterrupts
from engine.commands.output import close_stdout, draw_bars, make_room, narrate, print_line
from engine.commands.rank_input import RankInput
from engine.commands.show import end_words, exit_status, show_cause
from engine.commands.tail import Chunk, Follower
from engine.commands.telling import RunTeller
from engine.core.errors import SupervisorLostError
from engine.core.run.state import ENDED_WORDS
from engine.core.settings import QUIET, Notify
from engine.core.terminal_text import terminal_line
from engine.core.views.view import EventLine, Snapshot, Update
from engine.core.words import count
from engine.runs.listing import summarise
from engine.runs.record import read_plan

LATE_STEPS = 20  # steps after which the pace is known well enough to warn that the job ends before the run is done
POLL = 0.05  # seconds between two reads of the ranks' files
SILENCE = 3.0  # seconds without any output of ranks, after which their activity is printed


def merged(snapshot: Snapshot, message: Update) -> Snapshot:
    """A snapshot brought up to date by an update; curves are left as they are, since no command prints them."""
    ranks = list(snapshot.ranks)
    for view in message.ranks:
        ranks[view.rank] = view
    return msgspec.structs.replace(
        snapshot, run=message.run or snapshot.run, ranks=tuple(ranks), events=snapshot.events + message.events
    )


async def snapshots(run: LocalRun) -> AsyncGenerator[tuple[Snapshot, tuple[EventLine, ...]], None]:
    """The run after each change, with the events that are new, until the run has ended.

    Connects again when the supervisor dies. Raises SupervisorLostError: four connections in a row ended without a message."""
    snapshot: Snapshot | None = None
    failures = 0
    while True:
        try:
            async with contextlib.aclosing(run.subscribe()) as messages:
                async for message in messages:
                    failures = 0
                    if isinstance(message, Snapshot):
                        news = message.events[len(snapshot.events) if snapshot else 0 :]
                        snapshot = message
                    else:
                        assert snapshot is not None
                        news = message.events
                        snapshot = merged(snapshot, message)
                    yield snapshot, news
            return
        except SupervisorLostError:
            failures += 1
            if failures > 3:
                raise
            await asyncio.sleep(0.2)


# --- launch and attach ---------------------------------------------------------------------------------------------------


async def watch(
    run: LocalRun, *, owner: bool = True, notify: Notify = QUIET, rank_input: RankInput | None = None
) -> int:
    """Prints the ranks' output and the run's events, until the run ends or the user detaches. `owner`: Ctrl-C may stop the run (`launch`);
    otherwise it only detaches (`attach`). `notify`: what happens when the run needs its user. `rank_input`: passes standard input on to
    the only rank, whose output is printed as it comes then; None: it has none. Returns the exit status of the command."""
    interrupts = FollowInterrupts(run, owner=owner, rank_input=rank_input)
    interrupts.install()
    following = asyncio.create_task(_follow_run(run, interrupts, RunTeller(notify)))
    leaving = asyncio.create_task(interrupts.detached.wait())
    await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
    if following.done():
        leaving.cancel()
        return following.result()
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    narrate(f"{run.run} keeps running; to come back: rankdeck attach {run.run}")
    return 0


async def _follow_run(run: LocalRun, interrupts: FollowInterrupts, teller: RunTeller) -> int:
    printer: _Printer | None = None
    attempt: int | None = None
    held = was_suspended = is_warned = False
    late_from: int | None = None  # the step since which the run has been too slow for its job
    async with contextlib.aclosing(snapshots(run)) as stream:
        async for snapshot, events in stream:
            printer = printer or _Printer(run, snapshot, interrupts)
            printer.snapshot = snapshot
            if snapshot.run.attempt != attempt:
                attempt = snapshot.run.attempt
                interrupts.after_answer(partial(printer.turn_to, attempt))
            teller.look(snapshot.run)
            for event in events:
                if event.level != "info" and not event.is_end:  # its end is told below
                    interrupts.after_answer(partial(narrate, event.text))
            job = snapshot.run.job
            suspended = job is not None and job.suspended
            if suspended and not was_suspended:
                interrupts.after_answer(partial(narrate, snapshot.run.doing))
            was_suspended = suspended
            if job is None or job.last_step is None or snapshot.run.step is None:
                late_from = None
            elif late_from is None:
                late_from = snapshot.run.step
            elif snapshot.run.step >= late_from + LATE_STEPS and not is_warned:
                is_warned = True
                interrupts.after_answer(
                    partial(narrate, f"{run.run} will not be done in time: {job.words(time.time())}")
                )
            holding = snapshot.run.state == "holding"
            if holding and not held:
                interrupts.after_answer(partial(interrupts.rank_failed, snapshot))
            elif held and not holding:
                interrupts.withdraw_question()
            held = holding
    assert printer is not None
    interrupts.withdraw_question()
    printer.finish()
    await teller.close()
    narrate(end_words(snapshot))
    if snapshot.run.failure is not None:
        show_cause(snapshot)
    if snapshot.run.state == "stopped" and interrupts.stopped_by and snapshot.run.failure is None:
        return 128 + interrupts.stopped_by
    return exit_status(snapshot)


class _Printer:
    """Prints the files of a run's ranks as they grow, one attempt after the other."""

    def __init__(self, run: LocalRun, snapshot: Snapshot, interrupts: FollowInterrupts) -> None:
        self._run, self._interrupts = run, interrupts
        self.snapshot = snapshot  # the newest: before its job starts, a run does not know its nodes
        self._attempt = snapshot.run.attempt
        self._follower = self._new_follower()
        self._silent_until, self._silent_state = asyncio.get_running_loop().time() + SILENCE, ""
        self._bars = LiveBars(sys.stdout)
        self._is_raw = interrupts.has_rank_input
        draw_bars(self._bars)
        self._task = asyncio.create_task(self._print_forever())

    async def _print_forever(self) -> None:
        while True:
            is_asking = self._interrupts.is_asking
            if not is_asking:
                self._print(self._follower.poll())
                bars = sorted(self._follower.bars().items())
                self._bars.show([(self._before(rank), state) for (rank, _), state in bars])
                self._break_silence()
            await asyncio.sleep(0 if self._follower.behind and not is_asking else POLL)

    def _break_silence(self) -> None:
        """Prints the activity of the ranks while none of them has printed anything: once while they start, and once when they run."""
        view = self.snapshot.run
        if asyncio.get_running_loop().time() < self._silent_until or view.state == self._silent_state:
            return
        self._silent_state = view.state
        if view.state == "starting":
            imports = "; torch is imported once for all of them" if read_plan(self._run.paths).launch.warm else ""
            narrate(f"{view.doing}{imports}")
        elif view.state == "running":
            narrate(view.doing or f"{count(view.alive, 'rank')} started, and no output yet")

    def turn_to(self, attempt: int) -> None:
        """Continues with the files of this attempt, after the rest of all earlier ones."""
        while self._attempt < attempt:
            self._print(self._follower.drain())
            self._follower.close()
            self._attempt += 1
            self._follower = self._new_follower()

    def finish(self) -> None:
        """Prints the rest."""
        self._task.cancel()
        make_room()
        self._print(self._follower.drain())
        self._follower.close()

    def _new_follower(self) -> Follower:
        ranks = list(range(len(self.snapshot.ranks)))
        is_raw = self._interrupts.has_rank_input
        return Follower(self._run.paths, self._attempt, ranks, final=not is_raw, whole=not is_raw)

    def _before(self, rank: int) -> str:
        return f"[r{rank} {self.snapshot.ranks[rank].node}] "

    def _print(self, chunks: Iterable[Chunk]) -> None:
        try:
            for chunk in chunks:
                self._silent_until = math.inf
                make_room()
                if self._is_raw and (stream := sys.stdout if chunk.stream == "out" else sys.stderr).isatty():
                    stream.write("\n".join(map(terminal_line, chunk.data.split(b"\n"))))  # also the prompt of `input()`
                else:
                    write_chunk(chunk, "" if self._is_raw else self._before(chunk.rank))
            sys.stdout.flush()
            sys.stderr.flush()
        except BrokenPipeError:
            close_stdout()
            self._interrupts.reader_left()


def write_chunk(chunk: Chunk, prefix: str) -> None:
    """Writes a rank's lines to the stream they were written to. A terminal gets only text and colours."""
    stream = sys.stdout if chunk.stream == "out" else sys.stderr
    lines = chunk.data.removesuffix(b"\n")
    if stream.isatty():
        stream.writelines(f"{prefix}{terminal_line(line)}\n" for line in lines.split(b"\n"))
    elif prefix:
        head = prefix.encode()
        stream.buffer.writelines((head, lines.replace(b"\n", b"\n" + head), b"\n"))
    else:
        stream.buffer.write(chunk.data)


# --- wait ---------------------------------------------------------------------------------------------------------------


async def wait_settled(run: LocalRun) -> Snapshot:
    """Waits until the run has ended, or holds because a rank failed."""
    async with contextlib.aclosing(snapshots(run)) as stream:
        async for snapshot, _ in stream:
            if snapshot.run.state == "holding":
                break
    return snapshot


async def stop_and_wait(run: LocalRun, *, at_once: bool, wait: bool) -> str:
    """Stops a run, and returns what there is to say of that once the run has ended. `at_once`: SIGKILL immediately, without the profile's
    stop ladder. `wait`: False returns as soon as the supervisor has answered."""
    has_ended = summarise(run.paths).state in ENDED_WORDS
    is_queued = waits_for(run.paths) is not None  # its job is cancelled, and the answer says so
    answer = await run.stop(at_once=at_once)
    if not wait or has_ended or is_queued:
        return answer
    async with contextlib.aclosing(snapshots(run)) as stream:
        async for snapshot, _ in stream:
            view = snapshot.run
    saved = f"; {view.saved.words}" if view.saved is not None else ""
    return f"{run.run} {'was stopped' if view.state == 'stopped' else f'has {view.state}'}{saved}"


async def wait_for_end(run: LocalRun, *, seconds: float | None, as_json: bool) -> int:
    """`rankdeck wait`."""
    try:
        async with asyncio.timeout(seconds):
            snapshot = await wait_settled(run)
    except TimeoutError:
        narrate(f"{run.run} has not ended within {seconds:g} s")
        return 124
    status = exit_status(snapshot)
    end = {"run": run.run, "state": snapshot.run.state, "exit": status}
    print_line(msgspec.json.encode(end).decode() if as_json else end_words(snapshot))
    return status
