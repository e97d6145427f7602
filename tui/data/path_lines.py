"""Paths that a form's line may mean: the rest of one that is being typed, and the scripts of a folder."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from textual.suggester import Suggester

from tui.data.off_loop import off_loop

MOST_SCRIPTS = 500
DEEPEST = 3  # levels of folders below the working directory in which scripts are looked for
MOST_ENTRIES = 10_000  # entries read of these folders and of one whose names are completed: data sets have millions
_NO_PROGRAMS = ("__", "test_", "conftest.py", "setup.py")  # beginnings of names of files that are not launched
_NO_SOURCES = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})


def completed(text: str, folder: Path, *, ending: str | None = "") -> str | None:
    """The first path by name that begins with `text`. The path of a folder ends with `/`. None: there is none, or nothing has been typed. May
    wait for a file system. `ending`: the names of files end with it; None: only folders."""
    if not text or text.endswith("/") or (ending == "" and "/" not in text):  # `python3` is no path
        return None
    above, _, begun = text.rpartition("/")
    try:
        names = dict(_entries(folder / os.path.expanduser(f"{above}/" if "/" in text else ""), MOST_ENTRIES))
    except (OSError, ValueError):
        return None
    fitting = sorted(
        name
        for name, is_folder in names.items()
        if name.startswith(begun) and name.isprintable() and (is_folder or _ends(name, ending))
        if begun.startswith(".") or not name.startswith(".")
    )
    return f"{text}{fitting[0][len(begun) :]}{'/' if names[fitting[0]] else ''}" if fitting else None


def _ends(name: str, ending: str | None) -> bool:
    return ending is not None and name.endswith(ending)


def _entries(folder: Path, most: int) -> Iterator[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        for _, entry in zip(range(most), entries, strict=False):
            yield entry.name, entry.is_dir()


def scripts_below(folder: Path) -> list[str]:
    """Python files of a folder and of those below it, nearest first, as paths relative to it. May wait for a file system."""
    found: list[str] = []
    level, read = [""], 0
    for _ in range(DEEPEST + 1):
        below: list[str] = []
        for prefix in level:
            try:
                entries = sorted(_entries(folder / prefix, MOST_ENTRIES - read))
            except (OSError, ValueError):
                continue
            read += len(entries)
            for name, is_folder in entries:
                if name.startswith(".") or name in _NO_SOURCES or not name.isprintable():
                    continue
                if is_folder:
                    below.append(f"{prefix}{name}/")
                elif name.endswith(".py"):
                    found.append(f"{prefix}{name}")
        level = below
    return found[:MOST_SCRIPTS]


def probable_script(scripts: Sequence[str]) -> str:
    """The script in the folder itself that most users would launch; empty: none."""
    here = [path for path in scripts if "/" not in path and not path.startswith(_NO_PROGRAMS)]
    return min(here, key=lambda path: (not path.startswith("train"), path != "main.py", path), default="")


class PathSuggester(Suggester):
    """Offers the rest of a path while it is typed; the key for the right takes it."""

    def __init__(self, folder: Callable[[], Path], ending: str | None) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._folder, self._ending = folder, ending

    async def get_suggestion(self, value: str) -> str | None:
        return await off_loop(lambda: completed(value, self._folder(), ending=self._ending))
