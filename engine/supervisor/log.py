"""The supervisor's own log, which is its standard error."""

import contextlib
import sys
import time

from engine.core.terminal_text import visible


def note(text: str) -> None:
    """Writes a line to the log. If the disk is full, the line is lost."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        sys.stderr.flush()


def first_words(error: BaseException) -> str:
    """The first of the exceptions in an exception, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return visible(" ".join(f"{type(error).__name__}: {error}".split()))
