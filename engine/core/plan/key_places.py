"""Finds where the keys of a profile are written: file, line or `--set` option, for errors and warnings."""

from __future__ import annotations

from engine.core.errors import ProfileError
from engine.core.plan.toml_lines import line_of


def printable(text: str) -> str:
    """The text as one printable line: keys of a file may contain any character."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


class Places:
    """Turns a key path into file and line for an error or a warning."""

    def __init__(self, file: str, lines: dict[tuple[str, ...], int]) -> None:
        self.file = file
        self.lines = lines
        self.overridden: dict[tuple[str, ...], str] = {}

    def error(self, path: tuple[str, ...], reason: str, *, hint: str | None = None) -> ProfileError:
        """An error about a key. It names the `--set` option if one has set the key."""
        key, reason = printable(".".join(path)), printable(reason)
        for overridden, word in self.overridden.items():
            if path[: len(overridden)] == overridden or overridden[: len(path)] == path != ():
                return ProfileError(word, None, "", reason, hint=hint)
        return ProfileError(self.file, line_of(self.lines, path), key, reason, hint=hint)

    def where(self, path: tuple[str, ...]) -> str:
        """The place of a key: `profile.toml:12`, or `--set`."""
        if any(path[: len(overridden)] == overridden for overridden in self.overridden):
            return "--set"
        line = line_of(self.lines, path)
        return f"{self.file}:{line}" if line else self.file
