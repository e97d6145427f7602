"""The supervisor's own log, which is its standard error."""

from __future__ import annotations

import contextlib
import sys
import time


def note(text: str) -> None:
    """Writes a line to the log. If the disk is full, the line is lost."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        sys.stderr.flush()
