"""Records what each attempt of a run was started from, beside the work of the supervisor."""

import asyncio
import traceback

from engine.supervisor.log import note
from engine.supervisor.run import START_TIME, SupervisedRun


class Origins:
    """The recordings of one run, one after the other."""

    def __init__(self, run: SupervisedRun) -> None:
        self._run = run
        self._has_begun = asyncio.Event()

    def start_attempt(self) -> None:
        """An attempt begins. The run does not wait for the recording, and goes on without it if it fails."""
        self._has_begun.set()

    async def keep(self) -> None:
        """Records every attempt that begins, START_TIME later. Runs until it is cancelled."""
        while True:
            await self._has_begun.wait()
            await asyncio.sleep(START_TIME)
            await self.record()

    async def record(self) -> None:
        """Records the attempt that has begun, unless that is done."""
        if not self._has_begun.is_set():
            return
        self._has_begun.clear()
        run = self._run

        def record() -> None:
            from engine.runs.origins.origin import record_origin  # a tenth of the imports, which ranks would wait for

            record_origin(run.paths, run.plan, run.state.attempt)

        try:
            await asyncio.to_thread(record)
        except Exception:  # noqa: BLE001 - the folder may be anybody's, and no run fails for a remark about it
            note("what the run was launched from is not recorded:\n" + traceback.format_exc())
