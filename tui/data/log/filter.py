"""Which lines of a log are shown: those that match, without those that must not, from a level on."""

from collections.abc import Callable

from engine.core.log_levels import LEVELS, LevelReader
from tui.data.log.pattern import Pattern

AND = " & "  # Between the expressions of a filter. One after a `!` hides lines.


class LogFilter:
    """A filter. `text`: regular expressions with ` & ` between them; lines that match one after a `!` are hidden. Empty: all. `least`:
    index into `LEVELS` of the least serious level that is shown. Raises PatternError: an expression can't be used."""

    def __init__(self, text: str = "", least: int = 0) -> None:
        terms = [term.strip() for term in text.split(AND)]
        self.text = text.strip()
        self.least = least
        self._shown = [Pattern(term) for term in terms if term and not term.startswith("!")]
        self._hidden = [Pattern(term[1:]) for term in terms if term.startswith("!") and term != "!"]

    @property
    def is_empty(self) -> bool:
        return not (self._shown or self._hidden or self.least)

    @property
    def is_slow(self) -> bool:
        """Whether an expression took too long; it is left out from then on."""
        return any(one.is_slow for one in (*self._shown, *self._hidden))

    @property
    def words(self) -> str:
        """The lines that are shown, in words; empty: all."""
        level = (
            "" if not self.least else "errors" if self.least == len(LEVELS) - 1 else f"{LEVELS[self.least]}s and worse"
        )
        return ", ".join(filter(None, (level, self.text and f"only '{self.text}'")))

    def reader(self) -> Callable[[int, bytes], bool]:
        """Decides line by line, for lines of several files, each in its order: a traceback has the level of its first line."""
        levels: dict[int, LevelReader] = {}

        def keeps(source: int, line: bytes) -> bool:
            if self.least and levels.setdefault(source, LevelReader()).level(line) < self.least:
                return False
            return all(one.has(line) or one.is_slow for one in self._shown) and not any(
                one.has(line) for one in self._hidden
            )

        return keeps
