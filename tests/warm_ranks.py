"""Ranks that need not import torch: the node agent's template has done so, and forks them. No agent is needed.

A rank that starts anew spends seconds of processor time on imports, a fork milliseconds. What a test says about the start or the imports
of a process needs one that starts anew.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import DEADLINE, ROOT, SLOWEST, Process, kill_hard, processes_with, wait_until

MARK = "RANKDECK_TEST_TEMPLATE"
KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "RANKDECK_TESTS_TORCH")
"""What a template has of this process's environment. A rank has it too, besides its own."""


class Forked:
    """A process that a template has forked. `template`: its parent. `pid`: its number."""

    def __init__(self, template: Template, pid: int) -> None:
        self._template, self.pid = template, pid
        self.returncode: int | None = None
        """As of `subprocess.Popen`."""

    def poll(self) -> int | None:
        """The exit status, once there is one."""
        self._template.listen(0)
        return self.returncode

    def wait(self, seconds: float) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""
        end = time.monotonic() + seconds
        while self.poll() is None:
            left = end - time.monotonic()
            if left < 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", seconds)
            self._template.listen(left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Template:
    """A process that has imported torch. `python`: the interpreter. `path`: PYTHONPATH of the template and of all its ranks."""

    def __init__(self, python: str | Path = sys.executable, path: str = str(ROOT)) -> None:
        self._mark, self._python = uuid.uuid4().hex, str(python)
        self._folder = tempfile.TemporaryDirectory(prefix="rankdeck-template-")
        self._log = Path(self._folder.name, "log")
        self._ranks: dict[int, Forked] = {}
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= {MARK: self._mark, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1"}
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [self._python, "-u", str(Path(__file__).with_name("warm_template.py")), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._folder.name,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)
        while "ready" not in (message := self._receive()):
            assert "unfit" not in message, f"{message}: {self._log.read_text()}"

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path | str, out: Path, err: Path | None = None
    ) -> Forked:
        """Forks a rank.

        Args:
            argv: a script, or `-m` and a module; and its arguments.
            env: its environment, besides the template's.
            cwd: the folder that it runs in.
            out, err: files of its output; without `err` both go to the first.
        """
        request = {"argv": [self._python, "-u", *argv], "env": dict(env), "cwd": str(cwd), "stacks": "", "library": ""}
        with out.open("wb") as output, (err or out).open("ab") as errors:
            rights = array.array("i", [output.fileno() if err else errors.fileno(), errors.fileno()])
            message = json.dumps(request).encode()
            self._wire.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            while "forked" not in (answer := self._receive()):
                assert "ended" in answer, answer
        self._ranks[answer["forked"]] = Forked(self, answer["forked"])
        return self._ranks[answer["forked"]]

    def listen(self, seconds: float) -> None:
        """Waits so long for the end of a rank, and takes note of those that have ended."""
        readable = select.poll()
        readable.register(self._wire, select.POLLIN)
        while readable.poll(max(0.0, seconds) * 1000):
            self._receive()
            seconds = 0

    def fileno(self) -> int:
        """Can be read from when `listen` has something to do."""
        return self._wire.fileno()

    def left(self) -> list[Process]:
        """What there is of ranks, and of processes that they have started."""
        return [one for one in processes_with(MARK, self._mark) if one.pid != self._process.pid]

    def check_nothing_is_left(self) -> None:
        """Every process of the ranks is gone, or soon will be."""
        wait_until(lambda: not self.left(), what="every process of the ranks is gone")

    def kill_all(self) -> None:
        """Ends all ranks, and what they have started."""
        for process in self.left():
            kill_hard(process.pid)
        self.check_nothing_is_left()

    def close(self) -> None:
        """Leaves no process behind."""
        atexit.unregister(self.close)
        self.kill_all()
        self._wire.close()
        self._process.wait()
        self._folder.cleanup()

    def _receive(self) -> dict[str, Any]:
        self._wire.settimeout(DEADLINE * SLOWEST)
        data = self._wire.recv(1 << 16)
        assert data, f"the template has ended: {self._log.read_text()}"
        message: dict[str, Any] = json.loads(data)
        if "ended" in message and (rank := self._ranks.pop(message["ended"], None)):
            rank.returncode = message["status"]
        return message


_templates: dict[str, Template] = {}


def template(python: str | Path = sys.executable) -> Template:
    """The one of this process, for an interpreter."""
    name = str(python)
    return _templates.get(name) or _templates.setdefault(name, Template(name))


class Done(NamedTuple):
    """How ranks have ended."""

    statuses: list[int]
    outputs: list[str]
    errors: list[str]

    @property
    def returncode(self) -> int:
        """Of the first that failed; else 0."""
        return next((status for status in self.statuses if status), 0)

    @property
    def stdout(self) -> str:
        """Of all ranks."""
        return "".join(self.outputs)

    @property
    def stderr(self) -> str:
        """Of all ranks."""
        return "".join(self.errors)
