"""Ends a rank whose main thread never leaves a lost generation, so that a new process takes its place."""

from __future__ import annotations

import dis
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rankdeck.elastic._handover import Handover
from rankdeck.elastic._news import News, board, connect
from rankdeck.elastic._standing import Standing
from rankdeck.elastic._state import Arrival, State

STUCK_TIME = 3.0
"""Seconds that a main thread may sleep in a collective after its generation is lost and the next has begun. Gloo of torch 2.13 does
not tell a send that is queued when its connection closes (`Pair::signalException` passes over unbound buffers in `tx_`), which then
waits until the timeout."""

LOOK_PAUSE = 0.25
"""Seconds between two looks at the main thread."""

MAKES_WAY = 75
"""Exit status of a rank that can't leave a lost generation. Nothing is lost by replacing it: another rank has its state, or its
successor finds it in the file that `RANKDECK_HANDOVER` names."""

_OURS = str(Path(__file__).resolve().parents[1])
_OUR_FOLDERS = tuple(os.path.join(_OURS, name, "") for name in ("elastic", "c10d"))
_TORCH_FOLDERS = tuple(
    os.path.join("torch", *names) for names in (("distributed", ""), ("nn", "parallel", ""), ("futures", ""))
)
_BACKWARD = os.path.join("torch", "autograd", "graph.py")


class Replacement:
    """Looks after the main thread of this rank once a generation is lost.

    Args:
        state: of this rank.
        standing: of this rank.
        news: whether the next generation has begun.
        handover: where the state goes.
    """

    def __init__(self, state: State, standing: Standing, news: News, handover: Handover) -> None:
        self._state, self._standing, self._news, self._handover = state, standing, news, handover

    def watch(self, generation: int) -> None:
        """Begins to look after the main thread, in a thread of its own, until it has left this generation."""
        threading.Thread(target=self._watch, args=(generation,), name="rankdeck elastic exit", daemon=True).start()

    def _watch(self, generation: int) -> None:
        store: Any = None
        asleep_since = time.monotonic()
        while self._is_bound(generation):
            time.sleep(LOOK_PAUSE)
            if not is_stuck() or self._news.generation <= generation:
                asleep_since = time.monotonic()
            elif time.monotonic() - asleep_since > STUCK_TIME:
                store = store or connect()
                if not self._replace(store, generation):
                    return
                asleep_since = time.monotonic()

    def _is_bound(self, generation: int) -> bool:
        return (self._standing.inside or self._standing.leaving) and self._standing.generation == generation

    def _replace(self, store: Any, generation: int) -> bool:
        """Writes the state down and ends this process; returns if the main thread goes on, or with False if that can't be."""
        rank = self._standing.rank
        if not self._is_redundant(store, self._news.generation):
            try:
                self._handover.write()
            except Exception as error:  # noqa: BLE001 - whatever a part's state_dict or pickle may raise
                sys.stderr.write(
                    f"rankdeck: rank {rank} is stuck in a collective, and its state can't be handed over: {error}\n"
                )
                return False
        # What was written is whole only if the main thread has slept all the while.
        if self._is_bound(generation) and is_stuck():
            self._handover.publish()
            sys.stderr.write(f"rankdeck: rank {rank} is stuck in a collective; a new process takes its place\n")
            sys.stderr.flush()
            os._exit(MAKES_WAY)
        self._handover.discard()
        return True

    def _is_redundant(self, store: Any, generation: int) -> bool:
        """Whether a rank that has trained waits in this generation, with at least as many steps as this one."""
        for rank in range(self._standing.world):
            key = f"{board(generation, 0)}/{rank}"
            if rank != self._standing.rank and store.check([key]):
                other = Arrival(*json.loads(store.get(key)))
                if not other.fresh and (other.commits, other.step) >= self._state._progress:
                    return True
        return False


def is_stuck() -> bool:
    """Whether the main thread of this process sleeps in a lock inside a collective at this moment."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and is_collective(frame) and sleeps_in_a_lock()


def sleeps_in_a_lock() -> bool:
    """Whether the main thread of this process waits for another thread at this moment."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/wchan") as file:
            return file.read().startswith("futex")
    except OSError:
        return False


def is_collective(frame: FrameType) -> bool:
    """Whether a thread that waits is inside a collective, and not at a lock or queue of the script or of a data loader.

    Args:
        frame: its innermost one. C++ has none: a collective shows as torch's function that called it, as a backward pass, or as
            a call of `wait`, since the waiting functions of Python's own libraries have frames of their own.
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
