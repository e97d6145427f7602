"""Counts the lines of the house, and fails where it grows past its limits: `python .ci/house.py`.

The limits stand in `pyproject.toml`, in `[tool.house]`, and nowhere else. A change that needs more raises a limit in a commit of its
own, whose body says what was removed first.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("engine", "tui", "rankdeck")
SPLIT = ("engine", "engine/core", "tui", "rankdeck")
"""Folders whose folders are rooms of their own, and count by themselves."""

HARD_TO_READ = re.compile(
    r"^(What (?!goes wrong in practice)|How much|In which|As of|None:|Only (what|where|when|who))\b|: of the |\bnobody( else)?'s\b|^(Not|Never) [a-z]+ (is|are)\b"
)
"""How sentences begin, or go on, that most readers read twice. Say it with a subject and a verb instead, and name the argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What `[tool.house]` allows."""

    product: int
    tests: int
    class_lines: int  # of a class, with its parents that are ours
    loose_files: int  # modules directly in a room
    like_things: list[str]
    """Rooms that are a folder of like things, such as one screen a file; they may have any number of files."""


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the product: its place, its own lines and the names of its parents."""

    place: str
    lines: int
    parents: tuple[str, ...]


def tracked(*folders: str) -> list[Path]:
    """The Python files below some folders that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted(ROOT / name for name in set(listed) if name.endswith(".py") and (ROOT / name).is_file())


def room_of(path: Path) -> str:
    """The room of a module: the outermost folder that is not split into rooms."""
    folder = path.relative_to(ROOT).parent
    while folder.parent.as_posix() not in SPLIT and len(folder.parts) > 1:
        folder = folder.parent
    return folder.as_posix()


def classes_of(path: Path) -> Iterator[tuple[str, Class]]:
    """The classes of a module, with what they inherit from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            parents = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
            names = tuple(ast.unparse(parent).rpartition(".")[2] for parent in parents)
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield node.name, Class(f"{path.relative_to(ROOT)}:{node.lineno}", lines, names)


def large_classes(paths: list[Path], most: int) -> Iterator[str]:
    """The classes that have more lines than allowed, their parents of ours counted in."""
    known = {name: found for path in paths for name, found in classes_of(path)}

    def family(name: str) -> set[str]:
        return {name}.union(*(family(parent) for parent in known[name].parents if parent in known and parent != name))

    for name, found in known.items():
        lines = sum(known[member].lines for member in family(name))
        if lines > most:
            yield f"{found.place}: {name} has {lines} lines with its parents; at most {most}"


def crowded_rooms(paths: list[Path], limits: Limits) -> Iterator[str]:
    """The folders with more modules than a reader can look over."""
    files = Counter(path.parent.relative_to(ROOT).as_posix() for path in paths if path.name != "__init__.py")
    for folder, count in sorted(files.items()):
        if count > limits.loose_files and folder not in limits.like_things:
            yield f"{folder}: {count} files; at most {limits.loose_files}, or folders inside"


def sentences_of(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, by paragraph, with their lines. Strings after a constant count too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for text in re.split(r"\n\s*\n|(?<=[.?!])\s", node.value.value):
                yield node.lineno, " ".join(text.split())


def hard_sentences(paths: list[Path]) -> Iterator[str]:
    """The sentences in docstrings that match `HARD_TO_READ`."""
    for path in paths:
        for line, sentence in sentences_of(path):
            if HARD_TO_READ.search(sentence):
                yield f"{path.relative_to(ROOT)}:{line}: {sentence[:100]}"


def main() -> int:
    """Prints the lines of each room and what breaks a limit. Returns 1 if something does."""
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["house"]
    limits = Limits(**configured)
    product, tests = tracked(*PRODUCT, "rankdeck_command.py"), tracked("tests")
    lines = {path: path.read_bytes().count(b"\n") for path in product + tests}
    rooms: Counter[str] = Counter()
    for path in product:
        rooms[room_of(path)] += lines[path]
    for room, count in rooms.most_common():
        print(f"{count:7,}  {room}")
    totals = (("product", product, limits.product), ("tests", tests, limits.tests))
    wrong = [*large_classes(product, limits.class_lines), *crowded_rooms(product, limits), *hard_sentences(product)]
    for name, paths, most in totals:
        count = sum(lines[path] for path in paths)
        print(f"{count:7,}  {name} (at most {most:,})")
        if count > most:
            wrong.append(
                f"{name}: {count:,} lines; at most {most:,}: remove something first ([tool.house] in pyproject.toml)"
            )
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
