"""Saves the state when the run is stopped: no rank is left then that could give it to others in memory.

Rank 0 writes it, after the step that it is in: the other ranks can't have counted another one without it. They wait for that, and end. The
next attempt begins with it, unless the script has a checkpoint of a later step.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from rankdeck._metrics import log
from rankdeck.elastic import _streams
from rankdeck.elastic._leaving import leave_mpi
from rankdeck.elastic._share import Standing
from rankdeck.elastic._state import State
from rankdeck.elastic._store.board import Board, connect

STOPPED = 128 + signal.SIGTERM
"""Exit status of ranks that were stopped, as of a shell."""

_NAME = re.compile(r"elastic-step-(\d+)\.pt")


class Stop:
    """SIGTERM during a training, if the script does not handle it itself."""

    def __init__(self, state: State, standing: Standing) -> None:
        self._state, self._standing = state, standing
        folder = os.environ.get("RANKDECK_CHECKPOINTS", "")
        self._folder = Path(folder) if folder else None
        self.is_asked = False
        is_main = threading.current_thread() is threading.main_thread()
        if self._folder is not None and is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._asked)
            state.__dict__["_counted"] = self.end_if_asked

    def take(self) -> None:
        """Takes the state that an earlier attempt has saved, if it has made more steps. Raises StateError: the script has other parts now."""
        import torch

        found = [one for one in self._files() if one[0] > self._state.step]
        if not found:
            return
        step, path = max(found)
        saved = torch.load(path, weights_only=False)  # only the user can write into the folder of a run
        self._state._take(saved["commits"], saved["values"])
        if saved["commits"]:
            self._state._keep()
        self._standing.fresh = False
        sys.stderr.write(f"rankdeck: rank {self._standing.rank} goes on after step {step}, from {path.name}\n")

    def _files(self) -> list[tuple[int, Path]]:
        names = self._folder.glob("elastic-step-*.pt") if self._folder is not None else ()
        found = [(_NAME.fullmatch(path.name), path) for path in names]
        return [(int(match[1]), path) for match, path in found if match]

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self._standing.rank:
            if not self.is_asked:
                threading.Thread(target=self._end_with_rank_0, daemon=True).start()
        elif self.is_asked or not self._standing.inside:  # the second time, or no step is being made
            self.end()
        self.is_asked = True

    def end_if_asked(self) -> None:
        """Ends rank 0 if it was told to stop: no step is being made."""
        if self.is_asked and not self._standing.rank:
            self.end()

    def end(self) -> None:
        """Saves the state of the last counted step, and ends this process. Raises SystemExit."""
        from rankdeck.checkpoint import write

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        state, folder = self._state, self._folder
        if folder is not None and not self._standing.fresh:
            _streams.synchronize()
            state._return()
            if state._fault:
                sys.stderr.write(f"rankdeck: the state of step {state.step} is not saved: {state._fault}\n")
            else:
                older = self._files()
                write(folder / f"elastic-step-{state.step}.pt", {"commits": state._commits, "values": state._read()})
                log(step=state.step, checkpoint=state.step)
                for step, path in older:
                    if step != state.step:
                        path.unlink(missing_ok=True)
        with contextlib.suppress(RuntimeError):  # the store has ended
            Board(connect(), 0, 0).put("stopped", "1")
        leave_mpi()  # at its end, a process waits for every rank of its MPI job
        raise SystemExit(STOPPED)

    def _end_with_rank_0(self) -> None:
        with contextlib.suppress(RuntimeError):
            Board(connect(), 0, 0).get("stopped")
        os._exit(STOPPED)
