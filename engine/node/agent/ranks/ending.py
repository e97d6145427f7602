"""How ranks end: signalled, walked down the stop ladder, seen to end, or lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from engine.linux.processes import all_children, is_exiting, process_status
from engine.node.agent.ranks.saving import Saving, request_stop
from engine.node.agent.state import NodeState, Rank
from engine.node.agent.wire import Message

REQUEST = "auto"  # the step of the stop ladder that sends each rank the signal that its program understands
FIRST_LOOK, SAVING_LOOK = 1.0, 0.5  # seconds until the first look at what ranks save, and between two looks

FRESH = 30.0
"""Seconds after a SIGTERM of Slurm in which ranks do not get another one from the first step of the stop ladder."""

EXIT_NOTE_TIME = 2.0
"""Seconds to wait for the note about the end of an adopted rank, after its parent has reaped it. The parent writes the note before."""

UNREAPED_TIME = 60.0  # seconds that the parent of a rank may take to reap it and to write the note
UNOWNED_TIME = 0.2  # the same for a rank whose parent writes no notes: agent, template and warden were killed


class Ending:
    """Ends ranks and reports their ends. `send`: queues a message for the supervisor. `last_words`: sends the last that a rank wrote;
    returns what belongs into the message of its end. `on_stop`: called before the ladder begins: ranks that wait to be started are not
    wanted any more."""

    def __init__(
        self,
        state: NodeState,
        send: Callable[..., None],
        last_words: Callable[[Rank], Message],
        on_stop: Callable[[], None],
    ) -> None:
        self._state, self.send, self._last_words, self._on_stop = state, send, last_words, on_stop
        self._steps: list[tuple[str, float]] = []
        """Steps of the stop ladder: a signal or REQUEST, and seconds until the next step."""
        self._deadline: float | None = None
        """End of the current step; None if no ladder is under way."""
        self._saving: Saving | None = None
        """Follows the ranks' saves since the first step; None: the ladder does not wait for them."""
        self._patience_ends = 0.0
        self.told_at = 0.0
        """When the ladder of this attempt began, in seconds since the epoch; 0: it did not."""
        self._told: Message = {}
        """The last report about saves."""
        self._next_look, self._waits = 0.0, False
        """When saves are looked at next, and whether the ladder waits for one."""
        self._signals: list[float] = []
        """Signals of Slurm to every process of its job that the supervisor does not know: the last time before each, in seconds since the
        epoch, at which it had not come. A rank may save before this process runs again."""
        self._signals_at = 0.0
        self._before = 0.0
        """That time of the last one; 0: none has come."""
        self._was_told = False
        if "SLURM_JOB_ID" in os.environ:  # ranks get it too: the job ends, or somebody signals it
            signal.signal(signal.SIGTERM, lambda number, frame: self._signals.append(self._before))
        self._newest = 0
        """The newest generation of ranks that the ladder ends."""

    def tell_signal(self) -> None:
        """Tells the supervisor about a signal of Slurm, before it hears of ends of ranks that follow."""
        if self._signals:
            self._signals_at = self._signals.pop()
            self.send(type="job_signal")
        self._before = time.time()

    def signal_rank(self, message: Message) -> None:
        """`signal`: signals the group of a rank."""
        rank = self._state.ranks.get(message["rank"])
        if message["attempt"] == self._state.attempt and rank is not None and rank.status is None:
            rank.signal(message["signal"])

    def stop_ranks(self, message: Message) -> None:
        """`stop`: ends the ranks by the stop ladder, or at once."""
        if message["attempt"] == self._state.attempt:
            self.start_ladder(at_once=message["at_once"])

    def start_ladder(self, *, at_once: bool) -> None:
        """Begins the stop ladder. A ladder that is being walked goes on. `at_once`: it is cut short, and SIGKILL is the only step."""
        self._state.stopped = self._state.attempt
        self._on_stop()
        if self._deadline is not None and not at_once:
            return
        self._steps = [("SIGKILL", 5.0)] if at_once else list(self._state.terms["stop_ladder"])
        self._was_told = time.time() - self._signals_at < FRESH
        self.told_at = self.told_at or (self._signals_at if self._was_told else time.time())
        self._deadline, self._told = 0.0, {}
        self._saving = None if at_once else Saving(self._state.running(), self._state.note_written)
        self._next_look, self._waits = time.monotonic() + FIRST_LOOK, False
        self._patience_ends = time.monotonic() + self._state.terms["stop_patience"]
        generations = [rank.generation for rank in self._state.ranks.values()]
        self._newest = max([0, *generations, *self._state.starting.values()])
        self.walk_ladder()

    @property
    def is_stopping(self) -> bool:
        """Whether the stop ladder is being walked."""
        return self._deadline is not None

    def forget_ladder(self) -> None:
        """Its ranks are gone."""
        self._deadline = None

    def walk_ladder(self) -> None:
        """If it is time, takes the next step for every rank that ran when the ladder began. Continues stopped ranks: only a running process
        dies of SIGTERM."""
        if self._deadline is None:
            return
        alive = [rank for rank in self._state.running() if rank.generation <= self._newest]
        if not alive:
            self._deadline = None
            return
        now = time.monotonic()
        if self._saving is not None and now >= self._next_look:
            self._next_look = now + SAVING_LOOK
            self._waits = self._look_at_saves(self._saving, alive, is_over=now >= self._deadline)
        if now < self._deadline or (self._waits and self._steps and now < self._patience_ends):
            return
        if not self._steps:
            self._deadline = None
            for rank in alive:
                letter = (process_status(rank.pid) or (0, "?"))[1]
                self._lose(rank, f"process {rank.pid} could not be killed (state {letter})", alive=True)
            return
        name, seconds = self._steps.pop(0)
        self._deadline = now + seconds
        self._next_look = min(self._next_look, self._deadline)
        was_told, self._was_told = self._was_told, False
        if name == "SIGTERM" and was_told:
            name = REQUEST
        children = all_children()
        for rank in alive:
            rank.told_to_stop |= not is_exiting(rank.pid)
            if name == REQUEST:
                request_stop(rank, children, was_told=was_told)
            else:
                rank.signal(getattr(signal, name))
            rank.signal(signal.SIGCONT)

    def _look_at_saves(self, saving: Saving, alive: list[Rank], *, is_over: bool) -> bool:
        """Tells the supervisor about saves that have changed. Returns whether the ladder waits for one. `is_over`: the time of its step is."""
        ranks = [rank.number for rank in saving.goes_on(alive)]
        told = {"ranks": ranks if is_over or saving.item else [], "item": saving.item, "size": saving.size}
        if told != self._told:
            self._told = told
            self.send(type="saving", attempt=self._state.attempt, **told)
        return bool(ranks)

    def ended(self, rank: Rank, status: int) -> None:
        rank.status, rank.ended_at, self._state.dirty = status, time.time(), True
        self.send(
            type="ended",
            attempt=self._state.attempt,
            rank=rank.number,
            status=status,
            reason="",
            generation=rank.generation,
            by_itself=not (rank.told_to_stop or self._state.mpirun),
            **self._last_words(rank),
        )

    def watch_adopted(self) -> None:
        """Notices the ends of ranks that are no children of this process: the template or the warden reaps and reports them."""
        for rank in self._state.ranks.values():
            if not rank.adopted or rank.status is not None or self._is_seen(rank):
                continue
            status = noted_status(rank)
            if status is not None:
                self.ended(rank, status)
            elif rank.missing_since is None:
                rank.missing_since = time.monotonic()
            elif time.monotonic() - rank.missing_since > self._patience(rank):
                self._lose(rank, "it ended while no agent ran, so its exit status is unknown")

    def _is_seen(self, rank: Rank) -> bool:
        """Whether the process of a rank exists; also notes its parent."""
        mark = process_status(rank.pid)
        if mark is None or mark[0] != rank.start or mark[1] in "ZX":
            return False
        rank.parent = mark[2]
        return True

    def _patience(self, rank: Rank) -> float:
        """Seconds in which the note about the end of a rank may still come."""
        found = process_status(rank.pid)
        if found is not None and found[0] == rank.start:
            rank.parent = found[2]
        if rank.parent not in {
            0,
            self._state.warden,
            os.getpid(),
            *self._state.templates,
            self._state.user_template[0],
        }:
            return UNOWNED_TIME  # its parent writes none
        is_unreaped = found is not None and (found[0], found[1]) == (rank.start, "Z")
        return UNREAPED_TIME if is_unreaped else EXIT_NOTE_TIME

    def _lose(self, rank: Rank, reason: str, *, alive: bool = False) -> None:
        rank.status, rank.reason, rank.ended_at = -signal.SIGKILL, reason, time.time()
        self._state.dirty = True
        attempt, number, generation = self._state.attempt, rank.number, rank.generation
        self.send(type="lost", attempt=attempt, rank=number, reason=reason, alive=alive, generation=generation)


def noted_status(rank: Rank) -> int | None:
    """How a rank ended while there was no agent, by the note of its parent."""
    try:
        with open("exits") as file:
            notes = [line.split() for line in file if line.endswith("\n")]
    except OSError:
        return None
    wanted = [str(rank.pid), str(rank.start)]
    return next((int(note[2]) for note in notes if note[:2] == wanted), None)
