"""The program that runs a script: Python, the interpreter that its first line names, or the kernel."""

import os
from pathlib import Path

from engine.linux.files import open_regular

_ELF = b"\x7fELF"
MAX_FIRST_LINE = 256  # bytes of a first line that the kernel reads (`BINPRM_BUF_SIZE`)


def interpreter_of(script: Path) -> tuple[str, ...] | None:
    """Words before a script that is no Python program; empty: it runs as itself; None: Python runs it. A first line that names a Python is
    left to `launch.python`, which has torch. `script`: the file. A file that can't be read counts as Python: its check says what is wrong."""
    try:
        with open(open_regular(script.resolve()), "rb") as file:
            begin = file.read(MAX_FIRST_LINE)
    except OSError:
        return None
    if begin.startswith(_ELF):
        return ()
    if not begin.startswith(b"#!"):
        return None
    words = os.fsdecode(begin[2:].partition(b"\n")[0]).split(None, 1)
    if not words or "python" in " ".join(words):
        return None
    return () if os.access(script, os.X_OK) else tuple(words)
