"""A real terminal for tests: a pty, what a program wrote to it, and the screen that this makes."""

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

from tests.support import PATIENCE, kill_hard, wait_until

BEGUN = re.compile(rb"(?:\x1b(?:\[[^@-~]*)?)?\Z")  # a control sequence whose end has not come yet


class Pty:
    """Runs a program in a pty of its own.

    Args:
        program: with its arguments.
        columns: of the terminal.
        lines: of the terminal.
        term: its name in TERM.
    """

    def __init__(self, *program: str, columns: int, lines: int, term: str = "xterm-256color") -> None:
        self.output = b""
        """What the program has written, without a control sequence whose end has not come yet."""
        self._held = b""
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        root = Path(__file__).parents[2]
        environment = {**os.environ, "TERM": term, "COLORTERM": "truecolor"}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "TMUX", *([] if "256" in term else ["COLORTERM"])):
            # pytest-xdist sets the first, and a size that is set there goes before the terminal's own.
            environment.pop(name, None)
        self.child = pexpect.spawn(
            program[0], list(program[1:]), cwd=str(root), dimensions=(lines, columns), env=environment
        )

    def send(self, data: bytes) -> None:
        """Types."""
        self.child.send(data)

    def read(self) -> None:
        """Takes in what the program has written meanwhile."""
        try:
            data = self.child.read_nonblocking(65536, timeout=0.02)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        held = self._held + data
        self._held = BEGUN.findall(held)[0]
        whole = held.removesuffix(self._held)
        self.output += whole
        self._stream.feed(whole.replace(b"\x1b[>", b"\x1b[").replace(b"$p", b"p"))

    @property
    def text(self) -> str:
        """The screen."""
        return "\n".join(self.screen.display)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Reads until something is so."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"{what} did not come to be; on the screen:\n{self.text}")
            self.read()

    def wait_seen(self, *texts: str) -> None:
        """Reads until all texts are on the screen."""
        self.wait(lambda: all(text in self.text for text in texts), f"{texts}")

    def close(self) -> None:
        """Ends the program."""
        if self.child.isalive():
            kill_hard(self.child.pid)
            # Before `close`, which is not patient. A process is a zombie before its threads have ended, and is reaped after that.
            wait_until(lambda: not self.child.isalive(), what="the end of the program")
        self.child.close(force=True)


class Terminal(Pty):
    """Runs a Python module in a pty of its own."""

    def __init__(self, module: str, *arguments: str, columns: int = 160, lines: int = 60) -> None:
        super().__init__(sys.executable, "-m", module, *arguments, columns=columns, lines=lines)
