"""Tells the user of a followed run that it needs them, as their settings say."""

import asyncio
import sys

from engine.client.notices.notify import Telling, send, terminal_sequences
from engine.commands.output import make_room, narrate
from engine.core.settings import Notify
from engine.core.views.occasions import Condition, condition, occasion_of, telling
from engine.core.views.view import RunView


class RunTeller:
    """Looks at a run after each change. `notify`: the user's settings."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._before = Condition()
        self._sending: set[asyncio.Task[None]] = set()

    def look(self, run: RunView) -> None:
        """Reports the news since the last look."""
        now = condition(run)
        occasion, self._before = occasion_of(self._before, now), now
        if occasion is None or occasion not in self._notify.on or not self._notify.is_on:
            return
        told = Telling(occasion, run.run, run.name, telling(occasion, now))
        stream = next((one for one in (sys.stderr, sys.stdout) if one.isatty()), None)
        if stream is not None and (sequences := terminal_sequences(self._notify, told)):
            make_room()
            stream.write(sequences)
            stream.flush()

        async def tell() -> None:
            for problem in await send(self._notify, told):
                narrate(problem)

        task = asyncio.create_task(tell())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def close(self) -> None:
        """Returns once the command and the webhook have been told."""
        await asyncio.gather(*self._sending)
