"""The question whether the programs of a profile may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.core.catalogue import ProfileEntry
from tui.data.off_loop import off_loop
from tui.screens.confirm import ConfirmScreen
from tui.text.home import programs_of, runs_before_launch, trust_question

if TYPE_CHECKING:
    from textual.app import App

    from engine.client.protocols import EngineClient


def runs_programs(entry: ProfileEntry, *, launches: bool) -> bool:
    """Whether a profile of the working directory, or of a command, would run programs."""
    profile = entry.profile
    if profile is None or not entry.may_be_foreign:
        return False
    return bool(programs_of(profile) if launches else runs_before_launch(profile))


async def is_trusted(app: App[None], engine: EngineClient, entry: ProfileEntry) -> bool:
    """Whether the user trusts a profile; asks if that is not known, and keeps a yes."""
    profile = entry.profile
    if profile is None or await off_loop(engine.is_trusted, profile):
        return True
    if not await app.push_screen_wait(ConfirmScreen(*trust_question(entry, profile), do="Trust")):
        return False
    await off_loop(engine.trust, profile)
    return True
