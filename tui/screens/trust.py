"""The question whether the programs of a profile may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.core.catalogue import ProfileEntry
from engine.core.plan.programs import trust_detail
from engine.gate import CLOSED, Permit
from tui.data.off_loop import off_loop
from tui.screens.confirm import ConfirmScreen
from tui.text.cells import plain_line

if TYPE_CHECKING:
    from textual.app import App

    from engine.client.protocols import EngineClient


async def ask_for_trust(app: App[None], engine: EngineClient, entry: ProfileEntry) -> Permit:
    """Asks whether the user trusts a profile, keeps a yes, and returns what may start for it."""
    if entry.profile is None:
        return CLOSED
    detail = trust_detail(entry.profile, plain_line(str(entry.path)))
    if await app.push_screen_wait(ConfirmScreen(f"Trust {entry.name}?", detail, do="Trust")):
        return await off_loop(engine.trust, entry)
    return await off_loop(engine.permit, entry)
