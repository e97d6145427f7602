"""Keeps a process beside the supervisor that starts the next one if this one dies; see `guard_process`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from engine.runs.paths import RunPaths
from engine.supervisor import guard_process
from engine.supervisor.log import note

PAUSE = 1.0
"""Seconds from the start of a guard to the next one, where it was killed before. One that lived longer is replaced at once."""


class Guard:
    """The guard of this process.

    Args:
        paths: of the run.
    """

    def __init__(self, paths: RunPaths) -> None:
        # Taken out of the environment, so that no other process inherits it.
        self._deaths = int(os.environ.pop(guard_process.DEATHS, "0"))
        self._arguments = [str(paths.lock), str(Path(sys.argv[0]).resolve()), str(paths.folder)]
        self._for_bridge = (str(paths.supervisor), str(os.getpid()), str(paths.supervisor_log))
        self._pipe = -1
        self._released = False
        self._began = time.monotonic()

    async def keep(self) -> None:
        """Starts the guard, and starts it again when it is killed. Runs until it is cancelled."""
        while not self._released:
            began = time.monotonic()
            try:
                guard = self._start()
            except OSError as error:
                note(f"can't start the process that restarts a dead supervisor: {error}")
            else:
                await _wait(guard.pid)
                guard.wait()
            await asyncio.sleep(max(0.0, began + PAUSE - time.monotonic()))

    def _start(self) -> subprocess.Popen[bytes]:
        if time.monotonic() - self._began > guard_process.CALM_SECONDS:
            self._deaths = 0
        self._close()
        read, self._pipe = os.pipe()
        try:
            return subprocess.Popen(
                self._command(),
                stdin=read,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(read)

    def command_for_bridge(self) -> tuple[str, ...]:
        """What the bridge on this machine runs once this process has died: its guard may have died with it."""
        return (*self._command(), *self._for_bridge)

    def _command(self) -> list[str]:
        return [sys.executable, "-I", "-S", guard_process.__file__, str(self._deaths), *self._arguments]

    def release(self) -> None:
        """Ends the guard: this process ends as it should."""
        self._released = True
        if self._pipe >= 0:
            with contextlib.suppress(OSError):  # it has been killed
                os.write(self._pipe, b".")
        self._close()

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


async def _wait(pid: int) -> None:
    """Waits for the end of a child, which stays a zombie. (asyncio's own subprocess would kill it when its loop ends.)"""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
