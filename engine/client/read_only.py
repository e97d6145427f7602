"""The engine with `--read-only`: it refuses everything that would start, change or end something."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from engine.client.engine import LocalEngine
from engine.client.run import LocalRun
from engine.core.errors import SupervisorError, UsageError
from engine.core.plan.key_places import Places
from engine.core.plan.profile import Profile
from engine.core.run.events import Scope
from engine.core.views.view import RunNote
from engine.runs.listing import find_run


def _refuse() -> NoReturn:
    raise UsageError("rankdeck was opened with --read-only", hint="open it without --read-only to change something")


class ReadOnlyEngine(LocalEngine):
    """See `EngineClient`."""

    def save_profile(self, profile: Profile, path: Path | None = None) -> Path:
        _refuse()

    def keep_settings(self, values: Mapping[tuple[str, ...], object]) -> Path:
        _refuse()

    def trust(self, profile: Profile) -> None:
        _refuse()

    def write_note(self, run: str, note: RunNote) -> None:
        _refuse()

    def remove_run(self, run: str) -> None:
        _refuse()

    async def prewarm(self, profile: Profile | None) -> None:
        """Starts nothing."""

    async def launch(self, profile: Profile, places: Places | None = None) -> str:
        _refuse()

    async def attach(self, run: str) -> LocalRun:
        return ReadOnlyRun(find_run(run))


class ReadOnlyRun(LocalRun):
    """A run that is only watched."""

    async def _start(self) -> None:
        raise SupervisorError(
            f"the supervisor of {self.run} is gone", hint="rankdeck attach starts a new one, without --read-only"
        )

    async def stop(self, *, at_once: bool = False, by: str = "", again: bool = False) -> str:
        _refuse()

    async def restart(
        self, scope: Scope = "smallest", *, attempt: int | None = None, generation: int | None = None
    ) -> str:
        _refuse()

    async def kill(self, rank: int, signal: int, *, pid: int | None = None) -> str:
        _refuse()
