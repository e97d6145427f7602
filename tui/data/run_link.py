"""The connection to one run, opened again after a break until it is closed. Knows asyncio and nothing of Textual."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from engine.client.protocols import EngineClient, RunClient
from engine.core.errors import RankdeckError, SupervisorElsewhereError, UsageError
from engine.core.views.view import Snapshot, Update
from tui.data.model import RunModel

RETRY_SECONDS = (0.25, 5.0)  # first and longest wait before attaching again


class RunLink:
    """Folds the messages of a run's supervisor into a model; `told` gets the reason when the connection breaks, and "" when it is back."""

    def __init__(self, engine: EngineClient, run: str, model: RunModel, told: Callable[[str], None]) -> None:
        self.client: RunClient | None = None
        self._engine = engine
        self.run = run
        self._model = model
        self._told = told

    async def keep(self) -> None:
        """Listens until the run has ended. Raises UsageError: there is no such run, so that trying again is pointless. Raises
        SupervisorElsewhereError: the run can't be watched from this host."""
        wait = RETRY_SECONDS[0]
        while True:
            snapshots = self._model.snapshots
            problem = "the connection to the supervisor broke"
            try:
                await self._listen()
            except (UsageError, SupervisorElsewhereError):
                raise
            except RankdeckError as error:
                problem = error.message
            except OSError as error:
                problem = f"the supervisor can't be reached: {error.strerror or error}"
            if self._model.ended:
                self._told("")
                return
            if self._model.snapshots > snapshots:
                wait = RETRY_SECONDS[0]
            self._told(f"{problem}; attaching again")
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_SECONDS[1])

    async def _listen(self) -> None:
        """One connection, from its snapshot to its end."""
        await self.close()
        self.client = await self._engine.attach(self.run)
        messages: AsyncIterator[Snapshot | Update] = self.client.subscribe()
        async for message in messages:
            self._model.apply(message)
            self._told("")

    async def close(self) -> None:
        """Lets go of the run, which goes on."""
        if self.client is not None:
            with suppress(RankdeckError, OSError):
                await self.client.close()
