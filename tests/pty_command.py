"""The command in a terminal of its own, as a person uses it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect

from tests.support import COMMAND, PATIENCE


def pty(*words: str | Path) -> pexpect.spawn:
    """The command in a terminal of its own."""
    return pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], *map(str, words)],
        dimensions=(24, 100),
        encoding="utf-8",
        timeout=PATIENCE,
        env=os.environ,
    )


def ended(terminal: pexpect.spawn) -> int | None:
    """The exit status of a command in a terminal, once it has ended."""
    terminal.expect(pexpect.EOF)
    status: int | None = terminal.wait()
    return status


@contextmanager
def in_terminal(*words: str | Path) -> Iterator[pexpect.spawn]:
    """The command in a terminal, which is closed in the end."""
    terminal = pty(*words)
    try:
        yield terminal
    finally:
        if terminal.isalive():
            terminal.kill(signal.SIGKILL)
            terminal.wait()
        terminal.close()
