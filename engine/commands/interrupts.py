"""Ctrl-C and other signals while a command follows a run."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

from engine.client.editor import Frame, editor_command, frame_to_edit
from engine.client.run import LocalRun
from engine.commands.output import make_room, narrate
from engine.commands.rank_input import RankInput
from engine.commands.show import show_cause
from engine.core.errors import RankdeckError
from engine.core.plan.batch.job import SCHEDULER_NAMES
from engine.core.terminal_text import terminal_line
from engine.core.views.view import RunView, Snapshot
from engine.runs.record import place_here


class Requests:
    """Sends requests to runs in the background, and prints their answers."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self, run: LocalRun, *, at_once: bool, by: str = "", by_job: bool = False) -> None:
        """Asks a run to stop. `at_once`: SIGKILL immediately, without the profile's stop ladder. `by`: the signal of a job; empty: the user."""
        self._start(run.stop(at_once=at_once, by=by, by_job=by_job))

    def restart(self, run: LocalRun, seen: RunView) -> None:
        """Asks a run to start its dead ranks, or all of them. `seen`: the run as the user saw it."""
        self._start(run.restart(attempt=seen.attempt, generation=seen.generation))

    def _start(self, request: Coroutine[None, None, str]) -> None:
        task = asyncio.get_running_loop().create_task(self._send(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _send(request: Coroutine[None, None, str]) -> None:
        try:
            narrate(await request)
        except RankdeckError as error:
            narrate(str(error))


class FollowInterrupts:
    """Signals and questions while `launch`, `run` or `attach` follows one run. `owner`: Ctrl-C and the end of the reader may stop the run
    (`launch`); otherwise they only detach (`attach`). `rank_input`: gets the typed text while no question is asked; None: no rank gets it."""

    def __init__(self, run: LocalRun, *, owner: bool, rank_input: RankInput | None = None) -> None:
        self._run, self._owner, self._rank_input = run, owner, rank_input
        self._interactive = sys.stdin.isatty() and sys.stderr.isatty()
        self._count = 0
        self._answer: Callable[[bytes], None] | None = None
        """Takes the answer to the question that is on the terminal; None: there is no question."""
        self._after_answer: list[Callable[[], object]] = []
        self._requests = Requests()
        self.detached = asyncio.Event()
        self.stopped_by = 0
        """The signal that stops the run, SIGPIPE if the reader of the output has left; 0: nothing has stopped it from here."""

    @property
    def is_asking(self) -> bool:
        """Whether a question is on the terminal. Nothing else is printed meanwhile."""
        return self._answer is not None

    @property
    def has_rank_input(self) -> bool:
        """Whether typed text goes to a rank."""
        return self._rank_input is not None

    def after_answer(self, act: Callable[[], object]) -> None:
        """Does something that prints: now, or once the question that is on the terminal is answered."""
        if self._answer is not None:
            self._after_answer.append(act)
        else:
            act()

    def withdraw_question(self) -> None:
        """Ends a question that is on the terminal, because its answer does not matter any more."""
        if self._answer is not None:
            sys.stderr.write("\n")
            self._answered()

    def install(self) -> None:
        """Handles SIGINT, SIGTERM and SIGHUP on the running loop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(signal.SIGHUP, self.detached.set)
        if self._rank_input is not None:
            self._rank_input.listen()

    def _interrupt(self) -> None:
        self._count += 1
        if not self._owner and self._count == 1:
            self.detached.set()
        elif self._count == 1 and self._answer is None and self._is_attended():
            self._ask("d detach (the run keeps running) · s stop the run · Enter continue [Enter]", self._leave_or_stay)
        else:
            self._stop(signal.SIGINT, at_once=self._count > 2)

    def _terminate(self) -> None:
        if self._owner and not self._interactive:
            self._stop(signal.SIGTERM)
        else:
            self.detached.set()

    def _is_attended(self) -> bool:
        """Whether a user can answer: there is a terminal, and this process may read from it, which one in the background may not."""
        return self._interactive and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()

    def _ask(self, question: str, answer: Callable[[bytes], None]) -> None:
        """Asks on the terminal. `question`: the keys and what they do; the default last, in brackets. `answer`: gets the line that the user
        types, in lower case."""
        self._answer = answer
        make_room()
        if self._rank_input is not None:
            self._rank_input.pause()
        with contextlib.suppress(termios.error):  # what was typed before the question is no answer to it
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        sys.stderr.write(f"\nrankdeck: {question} ")
        sys.stderr.flush()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read_answer)

    def _read_answer(self) -> None:
        answer = self._answer
        try:
            line = os.read(sys.stdin.fileno(), 1024).strip().lower()
        except OSError:  # the terminal is gone
            self.detached.set()
            answer = None
        self._answered()
        if answer is not None:
            answer(line)

    def _answered(self) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        if self._rank_input is not None:
            self._rank_input.listen()
        self._answer = None
        acts, self._after_answer = self._after_answer, []
        for act in acts:
            act()

    def _leave_or_stay(self, line: bytes) -> None:
        if line[:1] == b"d":
            self.detached.set()
        elif line[:1] == b"s":
            self._stop(signal.SIGINT)
        else:
            self._count = 0

    def _stop(self, number: signal.Signals, *, at_once: bool = False) -> None:
        self.withdraw_question()
        self.stopped_by = self.stopped_by or number
        place = place_here() if number == signal.SIGTERM else None  # batch systems end jobs by SIGTERM
        by = f"SIGTERM in {SCHEDULER_NAMES[place.scheduler]}'s job {place.job}" if place is not None else ""
        self._requests.stop(self._run, at_once=at_once, by=by, by_job=place is not None)

    def reader_left(self) -> None:
        """Called when the reader of the output, such as `head`, has closed the pipe. Stops the run, because nobody would see it any more."""
        if not self._owner:
            self.detached.set()
        elif not self.stopped_by:
            self._stop(signal.SIGPIPE)

    def rank_failed(self, snapshot: Snapshot) -> None:
        """Called when the run holds. Asks what to do; where nobody can answer, the other ranks are stopped."""
        run, attended = snapshot.run, self._is_attended()
        if run.failure is not None and (attended or not self._owner):
            show_cause(snapshot)
        if self.stopped_by or not self._owner:
            return
        if not attended:
            narrate("there is no terminal to ask what to do: stopping the run")
            self._requests.stop(self._run, at_once=False)
            return
        frame = frame_to_edit(run.failure.traceback) if run.failure is not None else None
        edit = "" if frame is None else f"e edit {terminal_line(Path(frame.file).name, colour=False)}:{frame.line} · "
        self._ask(f"r restart · {edit}q quit [q]", partial(self._restart_or_quit, snapshot, frame))

    def _restart_or_quit(self, snapshot: Snapshot, frame: Frame | None, line: bytes) -> None:
        if line[:1] == b"r":
            self._requests.restart(self._run, snapshot.run)
        elif line[:1] == b"e" and frame is not None:
            if (command := editor_command(frame)) is None:
                narrate(f"there is no editor for {frame.file}:{frame.line}; set EDITOR")
            else:
                subprocess.run(command, check=False)  # it has the terminal; nothing else is to be seen meanwhile
            self.rank_failed(snapshot)
        else:
            self._requests.stop(self._run, at_once=False)


class BenchInterrupts:
    """SIGINT and SIGTERM while `bench` measures: the current run stops, at once the second time, and no other starts."""

    def __init__(self) -> None:
        self.count = 0
        self._run: LocalRun | None = None
        self._requests = Requests()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def watch(self, run: LocalRun | None) -> None:
        """From now on, signals stop this run. A signal that arrived during the launch stops the run now."""
        self._run = run
        if self.count:
            self._stop()

    def _interrupt(self) -> None:
        self.count += 1
        self._stop()

    def _stop(self) -> None:
        if self._run is not None:
            self._requests.stop(self._run, at_once=self.count > 1)
