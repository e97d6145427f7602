"""What a test of the app looks at, and how it waits: for conditions with a deadline, never for time to pass."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.screen import Screen

from tests.support import PATIENCE
from tui.app import RankdeckApp
from tui.screens.run import RunScreen


def text_of(app: RankdeckApp) -> str:
    """Every line that is on the screen."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


def type_at_once(app: RankdeckApp, *keys: str) -> None:
    """Sends keys as a slow connection does: all of them arrive before the app handles the first. `app`: the app. `keys`: characters, or names of
    other keys, such as `escape`."""
    for key in keys:
        is_character = len(key) == 1
        app.post_message(events.Key(_character_to_key(key) if is_character else key, key if is_character else None))


async def until(pilot: Pilot[Any], condition: Callable[[], bool], what: str = "") -> None:
    """Waits until something is so."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            app = pilot.app
            assert isinstance(app, RankdeckApp)
            raise AssertionError(f"{what or 'it'} did not come to be; on the screen:\n{text_of(app)}")
        await pilot.pause(0.01)


async def until_seen(pilot: Pilot[Any], *texts: str) -> str:
    """Waits until all of these texts are on the screen; gives the whole of it."""
    app = pilot.app
    assert isinstance(app, RankdeckApp)
    await until(pilot, lambda: all(text in text_of(app) for text in texts), f"{texts}")
    return text_of(app)


@contextlib.asynccontextmanager
async def showing(app: RankdeckApp, *texts: str, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Pilot[None]]:
    """Runs the app in a terminal of `size` columns and lines, and begins when these texts are on the screen."""
    async with app.run_test(notifications=True, size=size) as pilot:
        await until_seen(pilot, *texts)
        yield pilot


async def after(
    pilot: Pilot[Any], keys: str | Sequence[str], *texts: str, gone: str = "", on: type[Screen[Any]] | None = None
) -> str:
    """Presses keys, whose names stand between spaces or in a sequence, and waits for a screen of the class `on`, for texts, and until `gone` is not
    seen any more. Gives the whole screen."""
    await pilot.press(*(keys.split() if isinstance(keys, str) else keys))
    if on is not None:
        await until(pilot, lambda: isinstance(pilot.app.screen, on), on.__name__)
    if gone:
        await until_gone(pilot, gone)
    return await until_seen(pilot, *texts)


async def until_gone(pilot: Pilot[Any], text: str) -> None:
    """Waits until a text is not on the screen any more."""
    app = pilot.app
    assert isinstance(app, RankdeckApp)
    await until(pilot, lambda: text not in text_of(app), f"absence of {text!r}")


def run_screen(app: RankdeckApp) -> RunScreen:
    """The run screen, which must be there, perhaps below a dialog."""
    return next(screen for screen in reversed(app.screen_stack) if isinstance(screen, RunScreen))
