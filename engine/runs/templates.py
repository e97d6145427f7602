"""The templates of this user that wait for launches on this machine: their folders, finding and ending them."""

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.core.errors import RankdeckError
from engine.linux.locks import is_locked
from engine.linux.processes import signal_process
from engine.runs.paths import runtime_folder
from engine.runs.record import find_value

PREFIX = "template-"


class TemplateNote(msgspec.Struct, frozen=True, kw_only=True):
    """`note.json` of a template. `start`: start time of its process, in clock ticks since boot, because another process may get its pid."""

    pid: int
    start: int
    python: str


def template_folder(key: str) -> Path:
    """Where the template with a key has its socket, its lock and its copy of the ranks' library."""
    return runtime_folder() / f"{PREFIX}{key[:16]}"


def templates() -> Iterator[tuple[Path, TemplateNote]]:
    """The templates that take runs."""
    for folder in _folders():
        if waits(folder) and (note := find_value(folder / "note.json", TemplateNote)) is not None:
            yield folder, note


def waits(folder: Path) -> bool:
    """Whether a template holds the lock of its folder."""
    with contextlib.suppress(OSError):
        return is_locked(folder / "lock")
    return False


def end_template(note: TemplateNote) -> None:
    """Asks a template to take no more runs. The template ends with the last run that uses it."""
    if signal_process(note.pid, note.start, signal.SIGTERM):
        signal_process(note.pid, note.start, signal.SIGCONT)  # a stopped template would not notice the other


def remove_ended_templates() -> None:
    """Removes the folders of templates that have ended."""
    for folder in _folders():
        if not waits(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _folders() -> list[Path]:
    try:
        return sorted(runtime_folder().glob(f"{PREFIX}*/"))
    except (RankdeckError, OSError):
        return []
