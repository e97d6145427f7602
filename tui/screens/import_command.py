"""Filling a form from a command of another launcher."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.widgets import Input

from engine.core.catalogue import ProfileEntry
from engine.core.errors import RankdeckError
from tui.data.form import fits_a_form
from tui.data.off_loop import off_loop
from tui.screens.confirm import AskScreen
from tui.text.cells import plain_line
from tui.widgets.command_line import CommandLine

if TYPE_CHECKING:
    from textual.app import App

    from tui.deck import Deck

DETAIL = (
    "A command of torchrun, accelerate, deepspeed, mpirun or srun, or the name of an sbatch file. A form shows it as a profile; "
    "nothing is started. A command that is pasted on the home screen does the same."
)

LEFT_OUT_SECONDS = 20.0  # seconds for which the parts of a command that the form lacks are shown


class ImportScreen(AskScreen):
    """Asks for a command, or for the name of a batch file; several lines can be pasted."""

    LINE: ClassVar[type[Input]] = CommandLine

    def __init__(self) -> None:
        super().__init__("Import a launch command", "", DETAIL)

    @on(CommandLine.Pasted)
    def _pasted(self, message: CommandLine.Pasted) -> None:
        self.dismiss(message.text)


async def entry_of_command(app: App[None], deck: Deck, command: str) -> ProfileEntry | None:
    """The profile of a command; shows which parts are left out. Asks first if a plan would run programs that the command names. Returns
    the profile, without a file; None: it can't be read, or its programs are not trusted."""
    try:
        found = await off_loop(deck.engine.imported, command)
    except RankdeckError as error:
        deck.show_error("This command can't be imported", error)
        return None
    entry = ProfileEntry(name=found.profile.name, path=Path(), source="command", profile=found.profile, error=None)
    if not fits_a_form(found.profile):
        deck.say("the command contains characters that a form can't show", error=True)
        return None
    if found.left_out:
        deck.say("\n".join(map(plain_line, found.left_out)), seconds=LEFT_OUT_SECONDS)
    return entry
