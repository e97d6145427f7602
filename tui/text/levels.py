"""Levels of lines: the word that tells one, where it stands at the beginning of a line or after a time stamp."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from tui.data.log_pattern import Pattern

Level = Literal["debug", "info", "warning", "error"]

_RANK = r"(?:\[?(?:rank|r) ?\d+\]?:? ?)?"
_TIME = (
    r"[\[(]?(?:\d{2,4}[-/.]\d\d[-/.]\d{2,4}(?:[T ]\d\d:\d\d(?::\d\d)?)?|\d\d:\d\d:\d\d|[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d)"
    r"(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[\])]?"
)
_NAMES = r"(?:[ \t|:,-]+[\w.\[\]()/<>:-]+){0,2}?[ \t|:,-]+"
"""Up to two words between the time and the level: the name of a logger, a process."""
_BEFORE = rf"^{_RANK}(?:{_TIME}{_NAMES})?[\[(<]?"

_LEVEL = re.compile(
    rf"{_BEFORE}(?:(?P<error>ERROR|CRITICAL|FATAL|[Ee]rror(?=:)|[Ff]atal(?=:))|(?P<warning>WARN(?:ING)?|[Ww]arning(?=:))"
    r"|(?P<info>INFO|NOTICE)|(?P<debug>DEBUG|TRACE))\b"
    rf"|^{_RANK}(?P<traceback>Traceback \(most recent call last\)|(?:\w+\.)*\w*(?:Error|Exception)(?=:|$))"
    rf"|^{_RANK}\[(?:(?P<glog_error>[EF])|(?P<glog_warning>W)|(?P<glog_info>I))\d{{4}} \d\d:\d\d"
    r"|^[^\s:]{1,200}:\d+: (?P<python_warning>\w*Warning)(?=:)"
)
_LEVELS: dict[str, Level] = {
    "error": "error", "traceback": "error", "glog_error": "error", "warning": "warning", "glog_warning": "warning",
    "python_warning": "warning", "info": "info", "glog_info": "info", "debug": "debug",
}  # fmt: skip

ERRORS = Pattern(
    rf"{_BEFORE}(?:ERROR|CRITICAL|FATAL|[Ee]rror:|[Ff]atal:)|^{_RANK}(?:Traceback \(most recent call last\)"
    rf"|(?:\w+\.)*\w*(?:Error|Exception)(?::|$)|\[[EF]\d{{4}} \d\d:\d\d)",
    words=("ERROR", "CRITICAL", "FATAL", "rror", "atal:", "Traceback", "Exception", "[E", "[F"),
    noun="error",
)
"""Lines that tell of an error."""


class LevelWord(NamedTuple):
    """Where the word is, and its level."""

    begin: int
    end: int
    level: Level


def level_word(text: str) -> LevelWord | None:
    """The word that tells the level of a line; None: there is none."""
    found = _LEVEL.match(text)
    if found is None or found.lastgroup is None:
        return None
    return LevelWord(*found.span(found.lastgroup), _LEVELS[found.lastgroup])
