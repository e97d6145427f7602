"""Keeps processes beside the supervisor that start the next one if this one dies; see `guard_process`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from engine.node.agent.stopped import StoppedWatch
from engine.runs.paths import RunPaths
from engine.supervisor.lifetime import guard_process
from engine.supervisor.log import note
from engine.supervisor.run import START_TIME

PAUSE = 1.0
"""Seconds between two looks at a guard, and from its start to that of the next one, where several in a row lived no longer."""

SHORT_LIVES = 5
"""Guards in a row that are replaced at once although each lived less than `PAUSE`."""

END_TIME = 5.0
"""Seconds in which released guards have ended. Usually it takes milliseconds."""

PATIENCE = (0.0, 3.0, 6.0)
"""One guard for each; see `guard_process.take_turn`. The second is for the case that the first dies with this process, or soon after; the
third for the case that a signal has stopped this process and one of them, and the other one dies."""


def is_started_by_guard() -> bool:
    """Whether a guard has started this process. Asked before there are `Guards`."""
    return guard_process.DEATHS in os.environ


class Guards:
    """The guards of this process.

    Args:
        paths: of the run.
    """

    def __init__(self, paths: RunPaths) -> None:
        # Taken out of the environment, so that no other process inherits it.
        self._deaths = int(os.environ.pop(guard_process.DEATHS, "0"))
        self._arguments = [str(paths.lock), str(Path(sys.argv[0]).resolve()), str(paths.folder), str(paths.supervisor)]
        self._pipes: dict[float, int] = {}
        self._guards: dict[float, subprocess.Popen[bytes]] = {}
        self._released = False
        self._began = time.monotonic()

    def start_after_death(self) -> None:
        """Starts the guards at once if a guard has started this process.

        Called before this process is known as the newest supervisor: the guards of the dead one act until then, and these from then on.
        """
        if self._deaths:
            for patience in PATIENCE:
                self._start(patience)

    async def keep(self) -> None:
        """Starts the guards, and starts them again when they are killed. Runs until it is cancelled."""
        async with asyncio.TaskGroup() as guards:  # a defect in one must not leave the other behind
            for work in (*map(self._keep_one, PATIENCE), self._end_stopped()):
                guards.create_task(work)

    async def _end_stopped(self) -> None:
        """Ends stopped guards of an earlier supervisor. It looks at every process of the machine, so it does not delay the start of ranks."""
        await asyncio.sleep(START_TIME)
        own = {guard.pid for guard in self._guards.values()}
        await asyncio.to_thread(end_guards, self._arguments[0], only_stopped=True, apart=own)

    async def _keep_one(self, patience: float) -> None:
        if patience and not self._deaths:  # for deaths of others: it can start when ranks have
            await asyncio.sleep(START_TIME)
        short_lives = 0
        while not self._released:
            began = time.monotonic()
            if patience not in self._guards:
                self._start(patience)
            if guard := self._guards.get(patience):
                await _wait(guard.pid)
                guard.wait()
                self._guards.pop(patience, None)
            rest = began + PAUSE - time.monotonic()
            short_lives = short_lives + 1 if rest > 0 else 0
            await asyncio.sleep(rest if short_lives > SHORT_LIVES else 0)

    def _start(self, patience: float) -> None:
        if time.monotonic() - self._began > guard_process.CALM_SECONDS:
            self._deaths = 0
        self._close(patience)
        command = [sys.executable, "-I", "-S", guard_process.__file__]
        arguments = [str(self._deaths), str(patience), str(os.getpid()), *self._arguments]
        try:
            read, self._pipes[patience] = os.pipe()
            with open(read, "rb", buffering=0) as end:
                self._guards[patience] = subprocess.Popen(
                    [*command, *arguments],
                    stdin=end,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except OSError as error:
            note(f"can't start the process that restarts a dead supervisor: {error}")

    def release(self) -> None:
        """Ends the guards, and waits until they are gone: this process ends as it should, and nothing must start the next one.

        Guards of earlier supervisors too: one that a signal stops before it has ended would be left.
        """
        self._released = True
        for guard in self._guards.values():
            guard.kill()
        end_guards(self._arguments[0], only_stopped=False)
        for patience in tuple(self._pipes):
            self._close(patience)
        end = time.monotonic() + END_TIME
        for guard in self._guards.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                guard.wait(max(0.0, end - time.monotonic()))

    def _close(self, patience: float) -> None:
        if patience in self._pipes:
            os.close(self._pipes.pop(patience))


def end_guards(lock: str, *, only_stopped: bool, apart: Collection[int] = ()) -> None:
    """Ends guards of a run that would be left: those of an earlier supervisor that a signal has stopped, or all.

    Args:
        lock: path of the run's lock, which is one of their arguments.
        only_stopped: whether only stopped ones are ended.
        apart: pids of those that are kept.
    """
    wanted, program = os.fsencode(lock), b"/" + os.fsencode(Path(guard_process.__file__).name)
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in apart and (not only_stopped or guard_process.is_stopped(int(name))):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                is_guard = wanted in words and any(word.endswith(program) for word in words)
                if is_guard and os.stat(f"/proc/{name}").st_uid == os.geteuid():
                    os.kill(int(name), signal.SIGKILL)


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
