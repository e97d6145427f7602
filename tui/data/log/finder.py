"""A search in a log that is shown: a regular expression or errors, the match visited last, and the number of matches."""

from collections.abc import Callable
from typing import Literal

from engine.core.log_levels import level_word
from tui.data.log.merged import MergedLog, Place
from tui.data.log.pattern import ERRORS, Pattern, PatternError
from tui.data.log.search import Found, LogSearch, Step

TOO_SLOW = "it takes too long in these lines"

Origin = Place | Literal["start", "end"]  # where a search begins


class LogFinder:
    """A search that goes on in another log, and from where its first letter was typed. `told`: called in the thread of the search when it
    has found something."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told
        self._search: LogSearch | None = None
        self._origin: Origin | None = None
        self._error = ""
        self._step: Step = "nearest"
        self.pattern: Pattern | None = None  # the pattern that is sought; None: there is no search
        self.found: Found | None = None  # the result so far; None: there is no search

    @property
    def error(self) -> str:
        """Why the user's text can't be sought; empty: it can."""
        return TOO_SLOW if self.pattern is not None and self.pattern.is_slow else self._error

    @property
    def wrapped(self) -> Literal["", "first", "last"]:
        """Whether the newest match was found from the other end of the log: it is the first or the last."""
        if self.found is None or not self.found.wrapped:
            return ""
        return "first" if self._step == "next" else "last"

    @property
    def state(self) -> tuple[object, ...]:
        """Changes whenever there is something else to say of the search."""
        return self.found, self.error, self._step

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where a shown line has matches. In a search for errors, the place of the word that shows an error."""
        if self.pattern is None:
            return []
        if self.pattern is not ERRORS:
            return list(self.pattern.places(text))
        level = level_word(text)
        return [(level.begin, level.end)] if level is not None and level.level == "error" else []

    # --- searching ---------------------------------------------------------------------------------------------------

    def seek(self, text: str | None, log: MergedLog | None, origin: Origin) -> None:
        """Searches a log for a regular expression; case counts if it has capitals. None or empty ends the search. `origin`: where a new
        search begins; a search whose text goes on begins where it began before."""
        self._error = ""
        self.pattern = None
        self._origin = (self._origin or origin) if text else None
        if text:
            try:
                self.pattern = Pattern(text)
            except PatternError as error:
                self._error = str(error)
        self._begin(log)

    def seek_errors(self, log: MergedLog | None) -> None:
        """Searches for the first line that tells of an error."""
        self._error, self.pattern, self._origin = "", ERRORS, "start"
        self._begin(log)

    def go_on_in(self, log: MergedLog | None) -> None:
        self._origin = "end" if self.pattern is not None else None
        self._begin(log)

    def _begin(self, log: MergedLog | None) -> None:
        self.close()
        if self.pattern is not None and log is not None:
            self.found, self._step = Found(), "nearest"
            self._search = LogSearch(log.copy(), self.pattern, self._origin or "end", self._told)

    def close(self) -> None:
        """Ends the search, but keeps the pattern."""
        if self._search is not None:
            self._search.close()
        self._search = self.found = None

    def ask(self, step: Step | None = None) -> None:
        """Asks for another match; None: as last time."""
        if self._search is not None:
            self._step = step or self._step
            self._search.ask(self._step)

    def look(self) -> None:
        """Searches the lines written meanwhile too."""
        if self._search is not None:
            self._search.look()

    def take(self) -> tuple[Place, bool] | None:
        """Takes in the results. Returns the match that was asked for, and whether it is another one than before; None: there is no new one."""
        if self._search is None or self.found is None:
            return None
        before, self.found = self.found, self._search.found
        if self.found.asked == before.asked or self.found.place is None:
            return None
        return self.found.place, self.found.place != before.place
