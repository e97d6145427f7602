"""Starts the app with the user's settings, in the terminal of the command or in a browser."""

import os
import sys
from collections.abc import Mapping

from textual.driver import Driver

from engine.client.protocols import EngineClient
from engine.core.plan.document.places import Places
from engine.core.settings import Settings
from tui.app import RankdeckApp
from tui.driver import RankdeckDriver
from tui.keymap import check_theme, keymap_of

ASCII_TERMINALS = ("linux", "vt100", "vt102", "vt220", "ansi", "dumb")
"""Values of TERM of terminals without braille, and with few or no frames."""


def is_ascii_terminal(environment: Mapping[str, str]) -> bool:
    """Whether a terminal shows ASCII only, as far as its variables say. LANG and LC_CTYPE don't say: containers lack them, in terminals that show all."""
    locale = environment.get("LC_ALL", "").lower()
    return environment.get("TERM", "") in ASCII_TERMINALS or (bool(locale) and "utf" not in locale)


def run(
    engine: EngineClient,
    settings: tuple[Settings, Places],
    *,
    open_run: str | None = None,
    open_profile: str | None = None,
    ascii: bool = False,
    slow: bool = False,
    mouse: bool = True,
    read_only: bool = False,
    browser: tuple[int, int] | None = None,
) -> int:
    """Shows the app until the user leaves it; the arguments are those of `RankdeckApp`.

    Args:
        settings: the user's, and where each is written.
        mouse: False leaves the mouse to the terminal, for selecting text.
        browser: columns and lines of the browser that `rankdeck serve` connects with; None in a terminal.

    Returns:
        Exit status.

    Raises:
        ProfileError: there is no such theme, id or key in the settings, or a key would have two meanings.
    """
    check_theme(*settings)
    keymap = keymap_of(*settings)
    driver: type[Driver] = RankdeckDriver
    if browser is not None:
        from tui.browser import BrowserDriver  # in a terminal, it would delay the first frame

        driver = BrowserDriver

    app = RankdeckApp(
        engine,
        settings[0],
        open_run=open_run,
        open_profile=open_profile,
        ascii=ascii or (browser is None and is_ascii_terminal(os.environ)),
        slow=slow,
        read_only=read_only,
        keymap=keymap,
        driver_class=driver,
    )
    app.run(mouse=mouse, size=browser)
    if app.parting is not None and browser is None:
        sys.stdout.write(f"{app.parting}\n")
    return app.return_code or 0
