"""Makes the pictures: the form with the recipes, and a real run of the quickstart profile, as the app shows them, exported by Textual.

`make picture` runs it. Takes about half a minute; everything it starts is stopped again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

FOLDER = Path(__file__).resolve().parent / "pictures"
SIZE = (112, 34)
STEP = 150
"""Far enough for curves to be seen."""


async def _wait(pilot: Pilot[None], condition: Callable[[], bool], seconds: float = 600) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await pilot.pause(0.1)


async def main() -> None:
    """Writes `recipes.svg`, `run.svg` and `failure.svg`."""
    from engine.client.engine import LocalEngine
    from tui.app import RankdeckApp
    from tui.data.form_lines import RECIPE
    from tui.widgets.form_row import FormRow

    engine = LocalEngine()
    FOLDER.mkdir(exist_ok=True)
    app = RankdeckApp(engine, open_profile="quickstart")
    async with app.run_test(size=SIZE) as pilot:
        await _wait(pilot, lambda: "quickstart" in app.export_screenshot())
        await pilot.press("n")
        await _wait(pilot, lambda: any(row.field.id == RECIPE for row in app.screen.query(FormRow)))
        next(row.line for row in app.screen.query(FormRow) if row.field.id == RECIPE).focus()
        await _wait(pilot, lambda: "Recipes" in app.export_screenshot())
        (FOLDER / "recipes.svg").write_text(app.export_screenshot(title="rankdeck"))
        await pilot.press("escape")
        await pilot.press("enter")
        await _wait(pilot, lambda: bool(engine.runs()))
        run = engine.runs()[0].run
        deck = await engine.attach(run)
        try:
            await _wait(pilot, lambda: (engine.runs()[0].step or 0) >= STEP)
            await pilot.pause(1)
            (FOLDER / "run.svg").write_text(app.export_screenshot(title="rankdeck"))
            snapshot = await deck.snapshot()
            pid = snapshot.ranks[2].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await _wait(pilot, lambda: engine.runs()[0].state == "holding")
            await pilot.pause(2)
            (FOLDER / "failure.svg").write_text(app.export_screenshot(title="rankdeck"))
        finally:
            await deck.stop(at_once=True)
            await _wait(pilot, lambda: engine.runs()[0].state == "stopped")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    with tempfile.TemporaryDirectory(prefix="rankdeck") as home:
        os.environ["RANKDECK_HOME"] = home
        asyncio.run(main())
