"""Patterns that are compiled at their first use: compiling all of them takes as long as starting a program."""

import re
from typing import Any, cast


class _Late:
    def __init__(self, pattern: str, flags: int) -> None:
        self._source = pattern, flags

    def __getattr__(self, name: str) -> Any:
        found = re.compile(*self._source) if name == "compiled" else getattr(self.compiled, name)
        setattr(self, name, found)  # later uses don't come here
        return found


def late(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern that has the methods of `re.compile(pattern, flags)`."""
    return cast("re.Pattern[str]", _Late(pattern, flags))
