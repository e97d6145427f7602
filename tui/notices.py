"""Tells the user of runs that end, fail or hang, on any screen. Imported only if the user's settings ask for it."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable

from engine.client.notices.notify import Telling, send, terminal_sequences
from engine.core.errors import RankdeckError
from engine.core.settings import Notify, Occasion
from engine.core.views.occasions import Condition, condition, occasion_of, telling
from engine.core.views.view import RunSummary
from tui.data.off_loop import off_loop
from tui.deck import Deck
from tui.text.cells import plain_line

TELL_SECONDS = 2.0  # seconds between two looks for runs that need their user


async def tell(deck: Deck, notify: Notify, write: Callable[[str], object]) -> None:
    """Tells the user until it is cancelled. `write`: sends control sequences to the terminal."""
    watch = RunWatch(notify.on, time.time())
    while True:
        try:
            runs = await off_loop(deck.engine.runs)
        except (RankdeckError, OSError):  # the list of runs says it; the next reading may succeed
            runs = []
        for told in watch.look(runs):
            write(terminal_sequences(notify, told))
            for problem in await send(notify, told):
                deck.say(plain_line(problem), error=True)
        await asyncio.sleep(TELL_SECONDS)


class RunWatch:
    """Compares lists of runs, to tell the user of some occasions; the state in which runs older than `since` are found is no news."""

    def __init__(self, on: Collection[Occasion], since: float) -> None:
        self._on, self._since = on, since
        self._known: dict[str, Condition] = {}

    def look(self, runs: Iterable[RunSummary]) -> list[Telling]:
        """The messages for the user after this reading."""
        told = []
        for run in runs:
            now = condition(run)
            before = self._known.get(run.run, Condition() if run.launched_at >= self._since else now)
            self._known[run.run] = now
            occasion = occasion_of(before, now)
            if occasion is not None and occasion in self._on:
                told.append(Telling(occasion, run.run, run.name, telling(occasion, now)))
        return told
