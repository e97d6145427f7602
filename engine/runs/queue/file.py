"""The file of a user's queue on a host. Processes change it under a lock, and replace it as a whole."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.core.errors import CheckError, RankdeckError
from engine.core.sweeps.queue import Queue
from engine.installed import COMMAND
from engine.linux.files import replace_file
from engine.linux.locks import try_lock
from engine.linux.processes import MARK, reap, start_process
from engine.runs.paths import private_folder, state_folder
from engine.runs.record import read_value

PATIENCE, POLL = 60.0, 0.02  # seconds in which another process has changed the file, and between two looks at that


def queue_file() -> Path:
    """The file with the queue; it is there as long as there are entries."""
    return state_folder() / "queue" / f"{socket.gethostname()}.json"


def read_queue() -> Queue:
    """The queue; empty if there is no file. Raises RankdeckError: it can't be read."""
    try:
        return read_value(queue_file(), Queue)
    except FileNotFoundError:
        return Queue()
    except OSError as error:
        hint = "if it is damaged, remove it: the runs that waited are lost, others are not"
        raise RankdeckError(f"{queue_file()} can't be read: {error.strerror}", hint=hint) from None


def change_queue(change: Callable[[Queue], Queue]) -> Queue:
    """Changes the queue, while no other process does. `change` gives the new queue, and may run long. Returns it. Raises RankdeckError: it can't be
    read or written."""
    path = queue_file()
    private_folder(state_folder())
    private_folder(path.parent)
    end = time.monotonic() + PATIENCE
    while (lock := try_lock(path.with_suffix(".lock"))) is None:
        if time.monotonic() > end:
            hint = "try again; if it still does, find that process with lslocks, and end it"
            raise CheckError(f"another process has held {path.with_suffix('.lock')} for {PATIENCE:g} s", hint=hint)
        time.sleep(POLL)
    try:
        before = read_queue()
        after = change(before)
        if not after.entries:
            path.unlink(missing_ok=True)
        elif after != before:
            replace_file(path, msgspec.json.encode(after))
        return after
    except OSError as error:
        hint = "nothing was changed: see whether its disk is full, or its folder is not yours"
        raise RankdeckError(f"{path} can't be written: {error.strerror}", hint=hint) from None
    finally:
        os.close(lock)


def wake_starter(*, waits: bool) -> None:
    """If there is a queue, starts a process that starts its runs and outlives this one. `waits`: it waits for another such process, which may have
    looked too early; else the other one is enough."""
    if not queue_file().exists():
        return
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    argv = [sys.executable, "-P", str(COMMAND), "start-queued", *(["wait"] if waits else [])]
    shell = ["/bin/sh", "-c", '"$@" &', "sh"]  # it ends at once, so that this process has no child to reap later
    with contextlib.suppress(OSError):
        reap(start_process([*shell, *argv], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
