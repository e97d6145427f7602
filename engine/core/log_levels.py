"""The level of lines in the output of programs: of Python's logging, of glog and torch, of tracebacks."""

import re
from typing import Literal, NamedTuple, get_args

from engine.core.terminal_text import terminal_line

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)  # From the least to the most serious. A line that names none is `info`.
_RANK = r"(?:\[?(?:rank|r) ?\d+\]?:? ?)?+"
_TIME = (
    r"[\[(]?(?:\d{2,4}[-/.]\d\d[-/.]\d{2,4}(?:[T ]\d\d:\d\d(?::\d\d)?)?|\d\d:\d\d:\d\d|[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d)"
    r"(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[\])]?"
)
_NAMES = r"(?:[ \t|:,-]+[\w.\[\]()/<>:-]+){0,2}?[ \t|:,-]+"
"""Up to two words between the time and the level: the name of a logger, a process."""
_BEFORE = rf"^{_RANK}(?:{_TIME}{_NAMES})?[\[(<]?"
_AFTER_WORDS = rf"^{_RANK}(?:[\w.()/<>\[\]]++[ \t|:,-]++){{1,3}}[\[(<]?"
"""Up to three words of any kind: a level and a colon must follow."""

_CAPITALS = r"(?:ERROR|CRITICAL|FATAL|SEVERE)"
_ERROR = rf"{_CAPITALS}\b|(?:[Ee]rror|[Ff]atal)(?=:)"
_TRACEBACK = r"Traceback \(most recent call last\)"
_EXCEPTION = r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?=:|$)"
_GLOG_TIME = r"\d{4} \d\d:\d\d"

_LEVEL = re.compile(
    rf"{_BEFORE}(?:(?P<error>{_ERROR})|(?P<warning>WARN(?:ING)?\b|[Ww]arning(?=:))|(?P<info>INFO|NOTICE)\b|(?P<debug>DEBUG|TRACE)\b)"
    rf"|^{_RANK}(?P<raised_error>{_TRACEBACK}|{_EXCEPTION})"
    rf"|^{_RANK}\[?(?:(?P<glog_error>[EF])|(?P<glog_warning>W)|(?P<glog_info>I)){_GLOG_TIME}"
    r"|^[^\s:]{1,200}:\d+: (?P<python_warning>\w*Warning)(?=:)"
    rf"|{_AFTER_WORDS}(?:(?P<later_error>{_CAPITALS})|(?P<later_warning>WARN(?:ING)?)|(?P<later_info>INFO)|(?P<later_debug>DEBUG))(?=:)"
)
_INDEX = {group: [group.endswith(level) for level in LEVELS].index(True) for group in _LEVEL.groupindex}
"""The level of each group, as an index into `LEVELS`."""

ERROR_EXPRESSION = (
    rf"{_BEFORE}(?:{_ERROR})|^{_RANK}(?:{_TRACEBACK}|{_EXCEPTION}|\[?[EF]{_GLOG_TIME})|{_AFTER_WORDS}{_CAPITALS}:"
)
"""Finds the lines that begin to tell of an error (`re.MULTILINE`)."""

ERROR_WORDS = (
    "ERROR", "CRITICAL", "FATAL", "SEVERE", "rror", "atal:", "Traceback", "Exception", "Interrupt", "Exit", "E0", "E1", "F0", "F1",
)  # fmt: skip
"""At least one is in each match of `ERROR_EXPRESSION`."""

_BEGIN = 256  # bytes of a line in which its level is looked for
_FIRST_OF_TRACEBACK = re.compile(rf"{_RANK}\s*(?:\+ )?(?:Exception Group )?{_TRACEBACK}")
_INDENTED = re.compile(rf"{_RANK}(?:\s|$)")


class LevelWord(NamedTuple):
    """The word of a line that tells its level: from `begin` to `end`, in characters."""

    begin: int
    end: int
    level: Level


def level_word(text: str) -> LevelWord | None:
    """The word that tells the level of a line, at its beginning or after a time stamp; None: there is none."""
    found = _LEVEL.match(text)
    if found is None or found.lastgroup is None:
        return None
    return LevelWord(*found.span(found.lastgroup), LEVELS[_INDEX[found.lastgroup]])


class LevelReader:
    """Finds the levels of the lines of one file, in their order."""

    def __init__(self) -> None:
        self._in_traceback = False

    def level(self, line: bytes) -> int:
        """The level of the next line, as it was written, as an index into `LEVELS`."""
        line = line[:_BEGIN]
        text = line.decode("latin-1") if b"\x1b" not in line else terminal_line(line, colour=False)
        if _FIRST_OF_TRACEBACK.match(text):
            self._in_traceback = True
            return 3
        if self._in_traceback:
            self._in_traceback = _INDENTED.match(text) is not None
            return 3  # its frames, and the exception that ends it
        found = _LEVEL.match(text)
        return 1 if found is None or found.lastgroup is None else _INDEX[found.lastgroup]
