"""Finds the files and folders on which an import depends. Standard library only; Python 3.8 and later."""

from __future__ import annotations

import os
import stat

PACKAGE = (".dist-info", ".egg-info", ".egg-link", ".pth")  # ends of names that change with a package
TYPE_CHECKING = False
if TYPE_CHECKING:
    State = list[tuple[int, str]]


def source_state(path: str) -> State:
    """Values that change with a file, or with the packages in a folder: times in nanoseconds, the newest last. Empty if it can't be read."""
    try:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            return [(status.st_mtime_ns, f"{status.st_size} {status.st_ino}")]
        with os.scandir(path) as entries:
            return sorted((one.stat().st_mtime_ns, one.name) for one in entries if one.name.endswith(PACKAGE))
    except OSError:
        return []


class Sources:
    """Files and folders that the imports of a process depend on, and their state when it began."""

    def __init__(self, began: int) -> None:
        self._began = began
        self._states: dict[str, State | None] = {}

    def note(self, paths: list[str]) -> None:
        """Notes the state of files. A file that was changed after the process began counts as changed, because the process may have its old
        content."""
        for path in paths:
            seen = source_state(path)
            is_older = not seen or seen[-1][0] < self._began
            self._states[path] = seen if is_older else None

    def have_changed(self) -> bool:
        """Whether a new process would import something else."""
        return any(source_state(path) != seen for path, seen in self._states.items())
