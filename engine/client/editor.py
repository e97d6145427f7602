"""The user's editor, opened at the line where a traceback ends, and the user's pager."""

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

FRAME = re.compile(r'^ +File "(?P<file>/[^"\n]{1,4096})", line (?P<line>\d{1,7})', re.MULTILINE)
"""A frame of a traceback with an absolute path, so that no path is taken for an option."""

INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/")
"""In the paths of code that the user did not write."""

LINE_FIRST = ("vi", "vim", "nvim", "view", "nano", "emacs", "emacsclient", "micro", "joe", "kak", "jed", "ne", "mg")
"""Editors that take `+LINE FILE`. Others get the file alone, or as in `COLON`."""

_GOTO = ("--wait", "--goto")
COLON = {"code": _GOTO, "codium": _GOTO, "subl": _GOTO[:1], "zed": _GOTO[:1], "hx": (), "helix": ()}
"""Editors that take `FILE:LINE`, with the options before it."""


class Frame(NamedTuple):
    """A line of a file."""

    file: str
    line: int


@lru_cache(64)  # views ask several times a second, and files may be far away
def frame_to_edit(traceback: str) -> Frame | None:
    """The last frame of a traceback in one of the user's files on this machine, else the last frame in any file; None: there is no such
    frame."""
    frames = [Frame(found["file"], int(found["line"])) for found in FRAME.finditer(traceback)]
    here = [frame for frame in frames if Path(frame.file).is_file()]
    own = [frame for frame in here if not INSTALLED.search(frame.file)]
    return (own or here or frames)[-1] if frames else None


def editor_command(frame: Frame, environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """The command that opens a frame: $VISUAL, else $EDITOR, else vi or nano. None: there is no editor."""
    command = _installed(environment.get("VISUAL") or environment.get("EDITOR") or "", [["vi"], ["nano"]], environment)
    if command is None:
        return None
    name = Path(command[0]).name
    if name in COLON:
        return [*command, *COLON[name], f"{frame.file}:{frame.line}"]
    return [*command, *([f"+{frame.line}"] if name in LINE_FIRST else []), frame.file]


def pager_command(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """The command that shows files, which are added to it: $PAGER, else less. None: there is no pager."""
    # `more` would let control sequences of a rank through to the terminal.
    return _installed(environment.get("PAGER") or "", [["less"], ["view"]], environment)


def _installed(chosen: str, others: list[list[str]], environment: Mapping[str, str]) -> list[str] | None:
    """The words of a command. `chosen`: the user's choice; where it is empty, the first installed one of `others`. None: it is not installed."""
    try:
        words = shlex.split(chosen)
    except ValueError:  # an unclosed quote
        words = []
    candidates = [words] if words else others
    return next((one for one in candidates if shutil.which(one[0], path=environment.get("PATH"))), None)
