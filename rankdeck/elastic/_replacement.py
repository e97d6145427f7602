"""Ends a rank whose main thread does not leave a lost generation, and leaves its state in a file to the process that replaces it."""

import contextlib
import dis
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from rankdeck import _metrics
from rankdeck.elastic._share import Arrival, Standing
from rankdeck.elastic._state import State
from rankdeck.elastic._store.board import Board
from rankdeck.elastic._store.news import News


class Handover:
    """The file `$RANKDECK_HANDOVER`. It is trusted, because only the user can write into a run's folder."""

    def __init__(self, state: State, standing: Standing) -> None:
        self._path = os.environ.get("RANKDECK_HANDOVER", "")
        self._state, self._standing = state, standing

    def write(self) -> None:
        """Writes this rank's state, without publishing it. Raises any error of writing."""
        import torch

        if not self._path or self._standing.fresh:
            return  # this process has not trained
        self._state._return()
        saved = (self._state._commits, self._state._fault, self._state._read())
        with open(os.open(self._path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save(saved, file)

    def publish(self) -> None:
        """Publishes the written state, for the next process."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._path + ".new", self._path)

    def discard(self) -> None:
        """Removes the written state if it was not published."""
        with contextlib.suppress(OSError):
            os.unlink(self._path + ".new")

    def take(self) -> None:
        """Takes the state that the previous process has published, if any."""
        import torch

        try:
            commits, fault, values = torch.load(self._path, weights_only=False)
        except FileNotFoundError:
            return
        except Exception as error:  # noqa: BLE001 - the unpickler may raise anything for a truncated file
            sys.stderr.write(
                f"rankdeck: rank {self._standing.rank} can't read the state that it was handed over: {error}\n"
            )
            return
        self._state._take(commits, values)
        self._state._fault = fault
        if commits:
            self._state._keep()
        self._standing.fresh = False

    def remove(self) -> None:
        """Removes the published state, after other ranks have received it."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)


STUCK_TIME = 3.0
"""Seconds that a main thread may sleep in a collective after its generation is lost and the next has begun. Gloo of torch 2.13 does
not report a closed connection to a queued send (`Pair::signalException` skips unbound buffers in `tx_`), which then waits until the
timeout."""

LEAVE_TIME = 60.0
"""Seconds that a main thread may take to leave a lost generation, whatever it does, if no step has taken half as long. It may wait for a
thread of the script that never ends, because that one waits for a lost peer."""

CHECK_INTERVAL = 0.25  # seconds between two checks of the main thread

MAKES_WAY = 75
"""Exit status of a rank that can't leave a lost generation. No state is lost: another rank has it, or this rank's successor finds it in
the file `$RANKDECK_HANDOVER`."""

_OURS = str(Path(__file__).resolve().parents[1])
_OUR_FOLDERS = (
    *(os.path.join(_OURS, name, "") for name in ("elastic", "c10d")),
    os.path.join(_OURS, "_torch_compat.py"),
)
_TORCH_FOLDERS = tuple(
    os.path.join("torch", *names) for names in (("distributed", ""), ("nn", "parallel", ""), ("futures", ""))
)
_BACKWARD = os.path.join("torch", "autograd", "graph.py")


class Replacement:
    """Watches the main thread of this rank after a generation is lost.

    Args:
        store: a connection that exists before the first generation: what is newer is shut down while a lost generation forms.
        timeout: seconds that a phase other than training may take, such as an evaluation.
        interrupt: wakes the main thread if it waits for a peer. It is called again until the main thread has left, because that one may
            open further connections before it waits.
    """

    def __init__(
        self,
        state: State,
        standing: Standing,
        news: News,
        handover: Handover,
        store: Any,
        timeout: float,
        interrupt: Callable[[], None],
    ) -> None:
        self._state, self._standing, self._news, self._handover = state, standing, news, handover
        self._store, self._timeout, self._interrupt = store, timeout, interrupt

    def watch(self, generation: int) -> None:
        """Watches the main thread, in a thread of its own, until it has left this generation."""
        threading.Thread(target=self._watch, args=(generation,), name="rankdeck elastic exit", daemon=True).start()

    def _watch(self, generation: int) -> None:
        asleep_since = lost_at = time.monotonic()
        with contextlib.suppress(RuntimeError):  # the store has ended, so that no generation can form
            while self._is_bound(generation):
                time.sleep(CHECK_INTERVAL)
                if self._standing.inside and self._standing.generation == generation:
                    self._interrupt()
                now = time.monotonic()
                if not is_stuck():
                    asleep_since = now
                if self._news.generation <= generation:
                    asleep_since = now
                elif now - asleep_since > STUCK_TIME or now - lost_at > self._longest():
                    if not self._replace(generation, is_late=now - lost_at > self._longest()):
                        return
                    asleep_since = lost_at = now

    def _longest(self) -> float:
        """Seconds in which the main thread must leave: more than the longest step so far, and more than its current work outside a step."""
        longest = max(LEAVE_TIME, 2 * self._state._changes.longest_pause)
        return max(longest, self._timeout) if _metrics.phase else longest

    def _is_bound(self, generation: int) -> bool:
        return (self._standing.inside or self._standing.leaving) and self._standing.generation == generation

    def _replace(self, generation: int, is_late: bool) -> bool:
        """Saves the state and ends this process. Returns True if the main thread continues, False if saving failed. `is_late`: the time of
        the main thread is over, so that it need not be in a collective."""
        where = (
            f"waits in {place()}, and does not notice that a peer is lost" if is_late else "is stuck in a collective"
        )
        rank = self._standing.rank
        if not self._is_redundant(self._news.generation):
            try:
                self._handover.write()
            except Exception as error:  # noqa: BLE001 - whatever a part's state_dict or pickle may raise
                sys.stderr.write(f"rankdeck: rank {rank} {where}, and its state can't be handed over: {error}\n")
                return False
        # What was written is consistent only if the main thread slept meanwhile.
        if self._is_bound(generation) and (sleeps() if is_late else is_stuck()):
            self._handover.publish()
            sys.stderr.write(f"rankdeck: rank {rank} {where}; a new process takes its place\n")
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
                if not other.fresh and not other.fault and (other.commits, other.step) >= self._state._progress:
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


def sleeps() -> bool:
    """Whether the main thread does not run."""
    with open(f"/proc/self/task/{os.getpid()}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "SD"


def place() -> str:
    """Returns where the main thread is, as file, line and function: its innermost frame, and that of the script below it."""
    frame = inner = sys._current_frames().get(threading.main_thread().ident or 0)
    libraries = (os.path.dirname(threading.__file__), *_OUR_FOLDERS)
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(libraries):
        frame = frame.f_back
    places = dict.fromkeys(
        f"{one.f_code.co_filename}:{one.f_lineno} ({one.f_code.co_name})" for one in (inner, frame) if one is not None
    )
    return ", called from ".join(places)


def is_collective(frame: FrameType) -> bool:
    """Whether a waiting thread is inside a collective, and not at a lock or queue of the script or of a data loader. `frame`: its
    innermost frame. C++ has none: a collective shows as the function of torch that called it, as a backward pass, or as a call of `wait`,
    because waiting functions of Python's own libraries have frames of their own."""
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
