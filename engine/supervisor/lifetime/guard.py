"""Keeps a process beside the supervisor that starts the next one if this one dies; see `guard_process`."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from engine.installed import ROOT
from engine.linux.files import replace_file
from engine.linux.processes import StoppedWatch, boot_id, signal_process, start_time
from engine.runs.paths import RunPaths
from engine.runs.record import find_value
from engine.supervisor.lifetime import guard_process
from engine.supervisor.log import note

PAUSE = 1.0  # Seconds between two looks at the guard. After several short lives the next waits as long.
SHORT_LIVES = 5  # guards in a row that are replaced at once although each lived less than `PAUSE`
END_TIME = 5.0  # Seconds in which a killed guard has ended. Usually it takes milliseconds.


class Noted(msgspec.Struct, frozen=True):
    """`guards.json`: pid and start time of guards of a run that may live, and the boot of the kernel to which these belong."""

    boot: str
    guards: list[tuple[int, int]]


class Guard:
    deaths: int
    """Supervisors that died in a row before this one, each within a minute of its start; 0: a command has started this one."""

    def __init__(self, paths: RunPaths) -> None:
        # Taken out of the environment, so that no other process inherits it.
        self.deaths = int(os.environ.pop(guard_process.DEATHS, "0"))
        self._paths, self._began = paths, time.monotonic()
        self._pipe: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._released = False

    @property
    def is_needless(self) -> bool:
        """Whether too many supervisors in a row have died: another one would not live either."""
        return self.deaths >= guard_process.MOST_FAILURES and not self._is_calm()

    def _is_calm(self) -> bool:
        return time.monotonic() - self._began > guard_process.CALM_SECONDS

    def start_after_death(self) -> None:
        """Starts the guard at once if another guard has started this process.

        Called before this process is known as the newest supervisor: the guard of the dead one acts until then, and this one from then on.
        """
        if self.deaths:
            self._start()

    async def keep(self) -> None:
        """Starts the guard, and starts it again when it is killed. Runs until it is cancelled."""
        short_lives = 0
        while not self._released:
            began = time.monotonic()
            if self._process is None:
                self._start()
            if self._process is not None:
                await _wait(self._process.pid)
                self._process.wait()
                self._process = None
            rest = began + PAUSE - time.monotonic()
            short_lives = short_lives + 1 if rest > 0 else 0
            await asyncio.sleep(rest if short_lives > SHORT_LIVES else 0)

    def _start(self) -> None:
        self._close()
        deaths = 0 if self._is_calm() else self.deaths
        lock, folder, newest = (str(path) for path in (self._paths.lock, self._paths.folder, self._paths.supervisor))
        words = [str(deaths), str(os.getpid()), lock, str(Path(sys.argv[0]).resolve()), folder, newest]
        try:
            read, self._pipe = os.pipe()
            with open(read, "rb", buffering=0) as end:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", guard_process.PROGRAM, str(ROOT), *words],
                    stdin=end,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            _note_guard(self._paths, self._process.pid)
        except OSError as error:
            note(f"can't start the process that restarts a dead supervisor: {error}")

    def release(self) -> None:
        """Ends the guard, and waits until it is gone: this process ends as it should, and nothing must start the next one.

        Guards of earlier supervisors too: one that a signal stops before it has ended would be left.
        """
        self._released = True
        if self._process is not None:
            self._process.kill()
        end_guards(self._paths)
        self._close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIME)

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _note_guard(paths: RunPaths, pid: int) -> None:
    """Records a guard beside earlier ones that may live, so that any process of the run can end them."""
    others = [(other, start) for other, start in _noted(paths) if start and start_time(other) == start]
    with contextlib.suppress(OSError):  # a full disk
        noted = Noted(boot_id(), [*others, (pid, start_time(pid))])
        replace_file(paths.guards, msgspec.json.encode(noted))


def _noted(paths: RunPaths) -> list[tuple[int, int]]:
    """The recorded guards, unless the machine was started again since."""
    noted = find_value(paths.guards, Noted)
    return noted.guards if noted is not None and noted.boot == boot_id() else []


def end_guards(paths: RunPaths) -> None:
    """Ends the guards of a run: that of its supervisor, and those of earlier ones, which a signal may have stopped."""
    for pid, start in _noted(paths):
        signal_process(pid, start, signal.SIGKILL)


async def _wait(pid: int) -> None:
    """Waits for the end of a child, which stays a zombie; ends it if a signal has stopped it.

    asyncio's own subprocess would kill it when its loop ends.
    """
    loop, ended, watch = asyncio.get_running_loop(), asyncio.Event(), StoppedWatch()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, ended.set)
    try:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), PAUSE)
            watch.look({pid})
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
