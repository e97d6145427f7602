"""Ctrl-C and other signals while a command follows a run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

from engine.client.run import LocalRun
from engine.commands.output import make_room, narrate
from engine.core.errors import RankdeckError


class StopRequests:
    """Sends stop requests to runs in the background, and prints their answers."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, run: LocalRun, *, at_once: bool) -> None:
        """Asks a run to stop.

        Args:
            run: which one.
            at_once: SIGKILL immediately, without the profile's stop ladder.
        """
        task = asyncio.get_running_loop().create_task(self._send(run, at_once=at_once))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _send(run: LocalRun, *, at_once: bool) -> None:
        try:
            narrate(await run.stop(at_once=at_once))
        except RankdeckError as error:
            narrate(str(error))


class FollowInterrupts:
    """Signals while `launch` or `attach` follows one run.

    Args:
        run: which one.
        owner: Ctrl-C may stop the run (`launch`); otherwise it only detaches (`attach`).
    """

    def __init__(self, run: LocalRun, *, owner: bool) -> None:
        self._run, self._owner = run, owner
        self._interactive = sys.stdin.isatty() and sys.stderr.isatty()
        self._count = 0
        self._asking = False
        self._after_answer: list[Callable[[], object]] = []
        self._requests = StopRequests()
        self.detached = asyncio.Event()
        self.stopping = False

    @property
    def is_asking(self) -> bool:
        """Whether a question is on the terminal. Nothing else is printed meanwhile."""
        return self._asking

    def after_answer(self, act: Callable[[], object]) -> None:
        """Does something that prints: now, or once the question that is on the terminal is answered."""
        if self._asking:
            self._after_answer.append(act)
        else:
            act()

    def withdraw_question(self) -> None:
        """Ends a question that is on the terminal, because its answer does not matter any more."""
        if self._asking:
            sys.stderr.write("\n")
            self._answered()

    def install(self) -> None:
        """Handles SIGINT, SIGTERM and SIGHUP on the running loop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGHUP, self.detached.set)

    def _interrupt(self) -> None:
        self._count += 1
        if not self._owner and self._count == 1:
            self.detached.set()
        elif self._count == 1 and self._interactive:
            self._ask()
        else:
            self._stop(at_once=self._count > 2)

    def _terminate(self) -> None:
        if self._owner and not self._interactive:
            self._stop(at_once=False)
        else:
            self.detached.set()

    def _ask(self) -> None:
        self._asking = True
        make_room()
        sys.stderr.write("\nrankdeck: d detach (the run keeps running) · s stop the run · Enter continue [Enter] ")
        sys.stderr.flush()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read_answer)

    def _read_answer(self) -> None:
        try:
            answer = os.read(sys.stdin.fileno(), 1024).strip().lower()
        except OSError:  # the terminal is gone
            answer = b"d"
        self._answered()
        if answer[:1] == b"d":
            self.detached.set()
        elif answer[:1] == b"s":
            self._stop(at_once=False)
        else:
            self._count = 0

    def _answered(self) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._asking = False
        acts, self._after_answer = self._after_answer, []
        for act in acts:
            act()

    def _stop(self, *, at_once: bool) -> None:
        self.withdraw_question()
        self.stopping = True
        self._requests.send(self._run, at_once=at_once)

    def stop_if_unattended(self) -> None:
        """Stops a run that holds when there is no terminal, because no user could answer."""
        if not self.stopping and self._owner and not self._interactive:
            narrate("a rank failed, and there is no terminal to ask what to do: stopping the run")
            self._stop(at_once=False)


class BenchInterrupts:
    """SIGINT and SIGTERM while `bench` measures: the current run stops, at once the second time, and no other starts."""

    def __init__(self) -> None:
        self.count = 0
        self._run: LocalRun | None = None
        self._requests = StopRequests()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def watch(self, run: LocalRun | None) -> None:
        """From now on, signals stop this run. One that arrived while it was being launched stops it now."""
        self._run = run
        if self.count:
            self._stop()

    def _interrupt(self) -> None:
        self.count += 1
        self._stop()

    def _stop(self) -> None:
        if self._run is not None:
            self._requests.send(self._run, at_once=self.count > 1)
