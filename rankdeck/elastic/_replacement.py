"""Ends a rank whose main thread does not leave a lost generation, so that a new process replaces it."""

from __future__ import annotations

import contextlib
import dis
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rankdeck.elastic._board import Board
from rankdeck.elastic._handover import Handover
from rankdeck.elastic._news import News
from rankdeck.elastic._state import Arrival, Standing, State

STUCK_TIME = 3.0
"""Seconds that a main thread may sleep in a collective after its generation is lost and the next has begun. Gloo of torch 2.13 does
not report a closed connection to a queued send (`Pair::signalException` skips unbound buffers in `tx_`), which then waits until the
timeout."""

CHECK_INTERVAL = 0.25
"""Seconds between two checks of the main thread."""

MAKES_WAY = 75
"""Exit status of a rank that can't leave a lost generation. No state is lost: another rank has it, or this rank's successor finds it in
the file `$RANKDECK_HANDOVER`."""

_OURS = str(Path(__file__).resolve().parents[1])
_OUR_FOLDERS = tuple(os.path.join(_OURS, name, "") for name in ("elastic", "c10d"))
_TORCH_FOLDERS = tuple(
    os.path.join("torch", *names) for names in (("distributed", ""), ("nn", "parallel", ""), ("futures", ""))
)
_BACKWARD = os.path.join("torch", "autograd", "graph.py")


class Replacement:
    """Watches the main thread of this rank after a generation is lost.

    Args:
        state: of this rank.
        standing: of this rank.
        news: tells whether the next generation has begun.
        handover: where the state is left.
        store: a connection that exists before the first generation: what is newer is shut down while a lost generation forms.
    """

    def __init__(self, state: State, standing: Standing, news: News, handover: Handover, store: Any) -> None:
        self._state, self._standing, self._news, self._handover = state, standing, news, handover
        self._store = store

    def watch(self, generation: int) -> None:
        """Watches the main thread, in a thread of its own, until it has left this generation."""
        threading.Thread(target=self._watch, args=(generation,), name="rankdeck elastic exit", daemon=True).start()

    def _watch(self, generation: int) -> None:
        asleep_since = time.monotonic()
        with contextlib.suppress(RuntimeError):  # the store has ended, so that no generation can form
            while self._is_bound(generation):
                time.sleep(CHECK_INTERVAL)
                if not is_stuck() or self._news.generation <= generation:
                    asleep_since = time.monotonic()
                elif time.monotonic() - asleep_since > STUCK_TIME:
                    if not self._replace(generation):
                        return
                    asleep_since = time.monotonic()

    def _is_bound(self, generation: int) -> bool:
        return (self._standing.inside or self._standing.leaving) and self._standing.generation == generation

    def _replace(self, generation: int) -> bool:
        """Saves the state and ends this process. Returns True if the main thread continues, False if saving failed."""
        rank = self._standing.rank
        if not self._is_redundant(self._news.generation):
            try:
                self._handover.write()
            except Exception as error:  # noqa: BLE001 - whatever a part's state_dict or pickle may raise
                sys.stderr.write(
                    f"rankdeck: rank {rank} is stuck in a collective, and its state can't be handed over: {error}\n"
                )
                return False
        # What was written is consistent only if the main thread slept meanwhile.
        if self._is_bound(generation) and is_stuck():
            self._handover.publish()
            sys.stderr.write(f"rankdeck: rank {rank} is stuck in a collective; a new process takes its place\n")
            sys.stderr.flush()
            os._exit(MAKES_WAY)
        self._handover.discard()
        return True

    def _is_redundant(self, generation: int) -> bool:
        """Whether another rank that has trained waits in this generation, with at least as many steps."""
        board = Board(self._store, generation, 0)
        for rank in range(self._standing.world):
            if rank != self._standing.rank and board.have_all([str(rank)]):
                other = Arrival(*json.loads(board.get(str(rank))))
                if not other.fresh and (other.commits, other.step) >= self._state._progress:
                    return True
        return False


def is_stuck() -> bool:
    """Whether the main thread sleeps in a lock inside a collective."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and is_collective(frame) and sleeps_in_a_lock()


def sleeps_in_a_lock() -> bool:
    """Whether the main thread waits for another thread."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/wchan") as file:
            return file.read().startswith("futex")
    except OSError:
        return False


def is_collective(frame: FrameType) -> bool:
    """Whether a waiting thread is inside a collective, and not at a lock or queue of the script or of a data loader.

    Args:
        frame: its innermost frame. C++ has none: a collective shows as the function of torch that called it, as a backward pass, or
            as a call of `wait`, because waiting functions of Python's own libraries have frames of their own.
    """
    file = frame.f_code.co_filename
    if file.startswith(_OUR_FOLDERS) or file.endswith(_BACKWARD) or any(folder in file for folder in _TORCH_FOLDERS):
        return True
    called = ""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti:
            break
        if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            called = str(instruction.argval)
    return called == "wait"
