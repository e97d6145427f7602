"""The level of lines in the output of programs: of Python's logging, of glog and torch, of tracebacks."""

from __future__ import annotations

import re

LEVELS = ("debug", "info", "warning", "error")
"""From the least to the most serious. A line that names none is `info`."""

_WORD = re.compile(
    rb"(?:^|[\s\[(|:-])(?:(?P<debug>DEBUG|TRACE)|(?P<info>INFO|NOTICE)|(?P<warning>WARN(?:ING)?|Warning|warning)"
    rb"|(?P<error>ERROR|CRITICAL|FATAL|SEVERE|Error|error|Fatal))(?=[\s\])|:,-]|$)"
    rb"|^\[?(?:rank\d+\]:)?\[?(?:(?P<glog_info>I)|(?P<glog_warning>W)|(?P<glog_error>[EF]))\d{4} \d\d:\d\d"
    rb"|^(?P<exception>(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?::|$))"
    rb"|\b\w+(?P<python_warning>Warning): "
)
_BEGIN = 256
"""Bytes of a line in which its level is looked for."""
_TRACEBACK = re.compile(rb"(?:\[rank\d+\]: ?)?\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\)")
_INDENTED = re.compile(rb"(?:\[rank\d+\]: ?)?(?:\s|$)")


class LevelReader:
    """Finds the levels of the lines of one file, in their order."""

    def __init__(self) -> None:
        self._in_traceback = False

    def level(self, line: bytes) -> int:
        """The level of the next line, as an index into `LEVELS`."""
        if _TRACEBACK.match(line):
            self._in_traceback = True
            return 3
        if self._in_traceback:
            self._in_traceback = _INDENTED.match(line) is not None
            return 3  # its frames, and the exception that ends it
        found = _WORD.search(line[:_BEGIN])
        if found is None or found.lastgroup is None:
            return 1
        word = found.lastgroup
        return 3 if word == "exception" else LEVELS.index(word.removeprefix("glog_").removeprefix("python_"))
