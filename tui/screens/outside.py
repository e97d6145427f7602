"""Programs that take the terminal for a while: the user's editor and pager. The app is suspended meanwhile."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from textual.app import App, SuspendNotSupported

from engine.client.editor import Frame, editor_command
from tui.text.cells import plain_line


class Said(NamedTuple):
    """A message for the user afterwards, and whether something failed."""

    text: str
    is_error: bool = False


def open_in_editor(app: App[None], frame: Frame, then: str = "") -> Said:
    """Opens a line of a file in the user's editor, and returns when the editor has ended."""
    where = plain_line(f"{frame.file}:{frame.line}")
    if not Path(frame.file).is_file():
        return Said(f"{where} is not on this machine", is_error=True)
    command = editor_command(frame)
    if command is None:
        return Said(f"there is no editor for {where}; set EDITOR", is_error=True)
    return run_outside(app, command, f"{where} was open{then}")


def run_outside(app: App[None], command: Sequence[str], done: str) -> Said:
    """Runs a program in the terminal of the app."""
    try:
        with app.suspend():
            status = subprocess.run(command, check=False).returncode
    except (OSError, SuspendNotSupported) as error:
        return Said(f"{plain_line(command[0])} can't be opened here: {error}", is_error=True)
    return Said(done) if status == 0 else Said(f"{plain_line(command[0])} ended with {status}", is_error=True)
