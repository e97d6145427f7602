"""Copies text to where the user can paste it from, and says where that is. A terminal supports OSC 52 or ignores it, and does not report
which. tmux passes it on only with `set-clipboard on`, and its default is `external`; so inside tmux the text goes to tmux's own buffer,
which can always be pasted."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Literal

MOST = 74_994  # bytes sent to a terminal at once: xterm and hterm drop longer sequences whole
PATIENCE = 2.0  # seconds that tmux may take


Place = Literal["tmux", "terminal", "nowhere"]

COPIED: dict[Place, str] = {
    "tmux": "copied to tmux's buffer; paste it with tmux's prefix and ]",
    "terminal": "sent to the terminal's clipboard (OSC 52). If the terminal does not support this, rankdeck logs prints the log",
    "nowhere": "are too long for a terminal's clipboard; rankdeck logs prints the log",
}
"""Words about copied lines, by the place of the copy."""


def place_of(text: str) -> Place:
    """Puts text into tmux's buffer if it can. Returns where the user can paste it from; `terminal`: once it is sent there. May wait."""
    if to_tmux(text):
        return "tmux"
    return "terminal" if fits_terminal(text) else "nowhere"


def to_tmux(text: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Puts text into tmux's buffer, if this is a terminal of tmux; tmux 3.2 and newer also pass it on to its clipboard. May wait."""
    program = shutil.which("tmux", path=environment.get("PATH"))
    if not environment.get("TMUX") or program is None:
        return False
    return any(_loaded([program, "load-buffer", *option, "-"], text, environment) for option in (["-w"], []))


def _loaded(command: list[str], text: str, environment: Mapping[str, str]) -> bool:
    try:
        ended = subprocess.run(
            command,
            input=text.encode("utf-8", "replace"),
            env=dict(environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def fits_terminal(text: str) -> bool:
    """Whether a terminal takes all of a text by OSC 52, which carries it in base64."""
    return (len(text.encode("utf-8", "replace")) + 2) // 3 * 4 <= MOST
