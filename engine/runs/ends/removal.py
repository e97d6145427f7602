"""Removes runs that have ended. A run that may still have processes is never removed."""

import os
import shutil
import time
from collections.abc import Callable

from engine.core.errors import RankdeckError, SupervisorError, UsageError
from engine.core.run.machine import replay
from engine.core.run.state import ENDED_WORDS, run_word
from engine.runs.listing import summarise
from engine.runs.lock import take_lock
from engine.runs.paths import RunPaths
from engine.runs.record import refuse_elsewhere, remove_runtime_files
from engine.runs.replay import read_journal

CLOSING_TIME = 10.0  # seconds to wait for the supervisor of an ended run to exit


class ActiveRunError(UsageError):
    """The run has not ended."""


def remove_run(paths: RunPaths, *, end_rest: Callable[[RunPaths], object] | None = None) -> bool:
    """Removes a run while holding its lock, so that no supervisor can start on it. `end_rest`: ends the processes of a run that has lost plan
    and supervisor; None: such a run is not removed unless it has ended. Returns whether it existed; another process may have removed it.
    Raises ActiveRunError: it has not ended, or it is active again; SupervisorElsewhereError: it has a supervisor on another host;
    RankdeckError: its folder can't be removed."""
    refuse_elsewhere(paths, "clean")
    try:
        lock = _lock_of_ended(paths, may_be_abandoned=end_rest is not None)
        try:
            if end_rest is not None and not paths.plan.exists():
                end_rest(paths)
            remove_runtime_files(paths)
            shutil.rmtree(paths.folder)
        finally:
            os.close(lock)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RankdeckError(f"can't remove {paths.folder}: {error.strerror}") from None
    return True


def _lock_of_ended(paths: RunPaths, *, may_be_abandoned: bool) -> int:
    """The lock of a run, taken. The supervisor of an ended run needs a moment to exit, and so does one that a guard has started on a run
    without a plan. Raises ActiveRunError.

    `may_be_abandoned`: a run without plan and supervisor counts as ended.
    """

    def may_go() -> bool:
        return has_ended(paths) or (may_be_abandoned and not paths.plan.exists())

    deadline = time.monotonic() + CLOSING_TIME
    while True:
        try:
            lock = take_lock(paths)
        except SupervisorError:
            if not may_go() or time.monotonic() >= deadline:
                raise active_error(paths) from None
            time.sleep(0.05)
            continue
        if may_go():
            return lock
        os.close(lock)
        raise active_error(paths)


def has_ended(paths: RunPaths) -> bool:
    """Whether a run has ended, by its journal, which is newer than its summary; by its summary if that can't be read.

    A run without either has ended: its launch failed.
    """
    try:
        state = replay(read_journal(paths.journal))
    except SupervisorError:
        state = None
    return (run_word(state) if state is not None else summarise(paths).state) in {*ENDED_WORDS, "unreadable"}


def active_error(paths: RunPaths) -> ActiveRunError:
    """Why a run can't be removed, and what ends it."""
    return ActiveRunError(f"run {paths.run} is {summarise(paths).state}", hint=f"rankdeck stop {paths.run} ends it")
