"""Makes the pictures, as the app shows them, exported by Textual: the form with the recipes, a real run of the quickstart profile, the hang of the
tutorial, from its cause to the comparison of the corrected run with it, and its sweep.

`make picture` runs it. Takes about three minutes; everything it starts is stopped again.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from textual.app import App
from textual.pilot import Pilot

FOLDER = Path(__file__).resolve().parent / "pictures"
TUTORIAL = FOLDER.parent / "tutorial.md"
MISTAKE = "    if step == 20 and dist.get_rank() == 1:\n        time.sleep(3600)\n"
"""What hangs in the script of the tutorial."""
SIZE = (112, 34)
STEP = 150  # far enough for curves to be seen


async def _wait(pilot: Pilot[None], condition: Callable[[], bool], seconds: float = 600) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await pilot.pause(0.1)


def _save(app: App[None], name: str) -> None:
    """Writes what the app shows; the path of this environment is nobody else's."""
    (FOLDER / name).write_text(app.export_screenshot(title="rankdeck").replace(sys.prefix, "/home/user/ml/.venv"))


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
        _save(app, "recipes.svg")
        await pilot.press("escape")
        await pilot.press("enter")
        await _wait(pilot, lambda: bool(engine.runs()))
        run = engine.runs()[0].run
        deck = await engine.attach(run)
        try:
            await _wait(pilot, lambda: (engine.runs()[0].step or 0) >= STEP)
            await pilot.pause(1)
            _save(app, "run.svg")
            snapshot = await deck.snapshot()
            pid = snapshot.ranks[2].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await _wait(pilot, lambda: app.export_screenshot().replace("&#160;", " ").count("waits for rank 2") == 3)
            _save(app, "failure.svg")
        finally:
            await deck.stop(at_once=True)
            await _wait(pilot, lambda: engine.runs()[0].ended_at is not None)


async def hang() -> None:
    """Writes `hang.svg`, `compare.svg` and `chart.svg`, with the keys of the tutorial. The script is in the working directory afterwards."""
    from engine.client.engine import LocalEngine
    from engine.planning.profile_paths import with_absolute_paths
    from engine.planning.profiles import save_profile
    from engine.planning.programs import Wanted, make_profile
    from tui.app import RankdeckApp
    from tui.screens.compare import CompareScreen
    from tui.screens.confirm import AskScreen
    from tui.screens.run import RunScreen

    code = TUTORIAL.read_text().partition("```python\n")[2].partition("```")[0]
    script = Path(os.getcwd(), "train.py")
    script.write_text(code)  # noqa: ASYNC240
    profile, _ = make_profile(Wanted(program=str(script), args=("--lr", "0.1"), ranks=2))
    save_profile(with_absolute_paths(profile))  # as rankdeck new does
    engine = LocalEngine()
    app = RankdeckApp(engine, open_profile=profile.name)

    def shows(text: str) -> bool:
        return text in app.export_screenshot().replace("&#160;", " ")

    async with app.run_test(size=SIZE) as pilot:
        await _wait(pilot, lambda: shows("Plan: train"))
        await pilot.press("enter")
        try:
            await _wait(pilot, lambda: shows("has not called") and shows("train.py:12"))
            await pilot.pause(1)
            _save(app, "hang.svg")
            script.write_text(code.replace(MISTAKE, ""))  # noqa: ASYNC240 - as with E
            await pilot.press("s", "y")
            await _wait(pilot, lambda: engine.runs()[0].state == "stopped")
            await pilot.press("A")
            await _wait(pilot, lambda: isinstance(app.screen, AskScreen))
            await pilot.press("backspace", "2", "enter")
            await _wait(pilot, lambda: isinstance(app.screen, RunScreen) and len(engine.runs()) == 2)
            await _wait(pilot, lambda: engine.runs()[0].state == "succeeded")
            await pilot.press("C")
            await _wait(pilot, lambda: isinstance(app.screen, CompareScreen) and shows("--lr"))
            await pilot.pause(2)
            _save(app, "compare.svg")
            await pilot.press("q", "2")
            await _wait(pilot, lambda: shows("r0"))
            await pilot.pause(2)
            _save(app, "chart.svg")
        finally:
            for run in engine.runs():
                if run.ended_at is None:
                    await (await engine.attach(run.run)).stop(at_once=True)


async def sweep() -> None:
    """Writes `leaderboard.svg` and `best.svg`: the sweep of the tutorial, and its best three runs side by side."""
    from engine.client.engine import LocalEngine
    from tui.app import RankdeckApp
    from tui.screens.compare import CompareScreen

    lines = TUTORIAL.read_text().partition("$ rankdeck new -n 2 ddp-mlp")[2].splitlines()
    swept = shlex.split(next(line for line in lines if line.startswith("$ rankdeck sweep")).removeprefix("$ rankdeck "))
    command = str(FOLDER.parent.parent / "rankdeck_command.py")
    for words in (["new", "-n", "2", "ddp-mlp", "--epochs", "6"], swept):
        await (await asyncio.create_subprocess_exec(sys.executable, command, *words)).wait()
    app = RankdeckApp(LocalEngine())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("H")
        await _wait(pilot, lambda: "10 runs" in app.export_screenshot().replace("&#160;", " "))
        await pilot.press("slash", *"mlp", "enter", "less_than_sign")
        await pilot.pause(1)
        _save(app, "leaderboard.svg")
        await pilot.press("space", "space", "space", "c")
        await _wait(pilot, lambda: isinstance(app.screen, CompareScreen) and "Results" in app.export_screenshot())
        await pilot.pause(2)
        _save(app, "best.svg")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    with tempfile.TemporaryDirectory(prefix="rankdeck") as home:
        os.environ["RANKDECK_HOME"] = home
        os.chdir(home)
        asyncio.run(sweep())
        shutil.rmtree(home)
        os.makedirs(home)
        os.chdir(home)
        asyncio.run(hang())
        asyncio.run(main())
