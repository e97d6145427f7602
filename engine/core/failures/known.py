"""Finds known failures in a text. The failures themselves are data in `causes/`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from engine.core.failures.causes import CAUSES
from engine.core.failures.causes.cause import Cause, Kind, Speaker

MAX_WORD = 200
"""Longest text of a named group in a sentence, in characters."""

_PLACEHOLDERS = {"node": "NODE", "python": "PYTHON", "job": "JOB"}
"""Used in sentences about connections if the log does not name the node."""


class Found(NamedTuple):
    """A known failure that a text shows."""

    cause: Cause
    words: dict[str, str]
    line: str
    """The line that shows it."""

    @property
    def detail(self) -> str:
        """What it means; empty if the program's own message is clear."""
        return self.cause.detail.format_map(self.words)

    @property
    def hint(self) -> str:
        """The next step."""
        return self.cause.hint.format_map(self.words)

    @property
    def fix(self) -> str:
        """The line to copy. Words from the text are quoted for a shell."""
        return self.cause.fix.format_map({name: shlex.quote(word) for name, word in self.words.items()})

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that the text names as the cause."""
        named = (word for name, word in self.words.items() if name.startswith("rank"))
        return frozenset(int(number) for word in named for number in re.findall(r"\d{1,9}", word))


def find(text: str, kind: Kind = "cause", *, letters: str = "") -> Found | None:
    """The most specific known failure of a kind that a text shows, or None.

    Args:
        text: of any length, with `\\n` as the only line end.
        kind: of the failure.
        letters: first letters of ids that count; empty: all.
    """
    general: Found | None = None
    for cause in CAUSES:
        if cause.kind != kind or (letters and cause.id[0] not in letters):
            continue
        if general and (cause.yields_to or cause.id[0] not in general.cause.yields_to):
            continue
        if found := _search(cause, text):
            if not cause.yields_to:
                return found
            general = found
    return general


def find_all(text: str, kind: Kind) -> Iterator[Found]:
    """Every match of every known failure of a kind."""
    for cause in CAUSES:
        if cause.kind == kind:
            for match in _compiled(cause.pattern).finditer(text):
                yield _found(cause, text, match)


def find_connection_cause(text: str, speaker: Speaker, status: int | None, words: Mapping[str, str]) -> Found | None:
    """Why a connection to a node failed; None if the text shows no known cause.

    Args:
        text: output of the command, with `\\n` as the only line end.
        speaker: `ssh`, `slurm`, `pbs` or `node`. What the login says counts for all.
        status: of the command, or None.
        words: `node`, `python` and `job`, for the sentences.
    """
    for cause in CAUSES:
        if cause.speaker not in (speaker, "login") or (cause.statuses and status not in cause.statuses):
            continue
        if found := _search(cause, text, words):
            return found
    return None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern at its first use: compiling all takes as long as starting a program."""
    return re.compile(pattern, re.MULTILINE)


def _search(cause: Cause, text: str, words: Mapping[str, str] = _PLACEHOLDERS) -> Found | None:
    match = _compiled(cause.pattern).search(text)
    return _found(cause, text, match, words) if match else None


def _found(cause: Cause, text: str, match: re.Match[str], words: Mapping[str, str] = _PLACEHOLDERS) -> Found:
    groups = {name: " ".join((word or "").split())[:MAX_WORD] for name, word in match.groupdict().items()}
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.start())
    return Found(cause, {**words, **groups}, text[begin : end if end >= 0 else len(text)])
