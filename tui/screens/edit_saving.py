"""Saving the profile in a form: its file, and the files that it may replace."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.core.catalogue import ProfileEntry
from engine.core.errors import RankdeckError
from engine.core.plan.profile import Profile
from tui.data.off_loop import off_loop
from tui.screens.base import DeckScreen
from tui.screens.confirm import AskScreen, ConfirmScreen
from tui.text.cells import plain_line


class Saving:
    """Saves the profile in a form.

    Args:
        entry: the profile whose file is the form's own; None: it has none yet.
        folder: where a profile without a file is saved; None: in the user's own folder.
        checked: the profile to save; None if it is not valid.
        was_saved: called when the profile in the form is what its file contains.
    """

    def __init__(
        self,
        screen: DeckScreen,
        entry: ProfileEntry | None,
        folder: Path | None,
        *,
        checked: Callable[[], Profile | None],
        was_saved: Callable[[Profile], None],
    ) -> None:
        self._screen, self.entry, self._folder = screen, entry, folder
        self._checked, self._was_saved = checked, was_saved

    def action_save(self, *, leave: bool = False) -> None:
        """Saves to the profile's own file, or a shipped or new one to the user's folder; `leave`: leaves the form then."""
        profile = self._checked()
        if profile is not None:
            path = None if self._folder is None else self._folder / f"{profile.name}.toml"
            if (
                self.entry is not None
                and self.entry.source not in ("shipped", "run")
                and self.entry.profile is not None
            ):
                same = profile.name == self.entry.profile.name
                path = self.entry.path if same else self.entry.path.with_name(f"{profile.name}.toml")
            self._save(profile, path, leave=leave)

    def action_save_as(self) -> None:
        profile = self._checked()
        if profile is None:
            return

        def answered(word: str | None) -> None:
            if word:
                path = Path(os.path.expanduser(word))
                self._save(profile, path if path.suffix == ".toml" else path.with_name(f"{path.name}.toml"))

        detail = "A file whose name ends with .toml. Profiles in .rankdeck/ are found from this folder."
        self._screen.app.push_screen(AskScreen("Save as", f".rankdeck/{profile.name}.toml", detail), answered)

    def _save(self, profile: Profile, path: Path | None, *, leave: bool = False) -> None:
        self._screen.begin(partial(self._write, profile, path, leave=leave), "save", exclusive=True)

    async def _write(self, profile: Profile, path: Path | None, *, leave: bool = False) -> None:
        known = await off_loop(self._screen.engine.profiles)
        other = next((entry for entry in known if _is_other(entry, path, profile.name, self.entry)), None)
        if other is not None:
            detail = f"{other.path} is another profile. The form overwrites it."
            question = ConfirmScreen(f"Replace {other.name}?", detail, do="Replace")
            if await self._screen.app.push_screen_wait(question) is not True:
                return
        shipped = self.entry is not None and self.entry.source == "shipped"
        try:
            saved = await off_loop(self._screen.engine.save_profile, profile, path)
        except (RankdeckError, OSError) as error:
            problem = error if isinstance(error, RankdeckError) else RankdeckError(str(error))
            self._screen.deck.show_error(f"{plain_line(profile.name)} was not saved", problem)
            return
        self.entry = ProfileEntry(name=saved.stem, path=saved, source="yours", profile=profile, error=None)
        self._was_saved(profile)
        self._screen.deck.profile_saved(self.entry.name)
        note = " as a profile of your own; the shipped one stays as it is" if shipped else ""
        self._screen.say(plain_line(f"saved{note}: {saved}"))
        if folder := await off_loop(self._unlisted, saved.parent):
            await self._ask_to_list(folder)
        if leave:
            self._screen.dismiss()

    def _unlisted(self, folder: Path) -> str:
        """The absolute path of a folder whose profiles are not found by name; empty: they are. May wait for a file server."""
        try:
            listed = folder.resolve() in [one.resolve() for one in self._screen.engine.profile_folders()]
        except (RankdeckError, OSError):  # the list of profiles reports it
            return ""
        return "" if listed else str(folder.absolute())

    async def _ask_to_list(self, folder: str) -> None:
        """Asks whether profiles of a folder are listed from now on, and whether new ones are saved there."""
        detail = f"Profiles in {folder} are then found by name, and new ones are saved there. Else, a profile there is launched by its path."
        question = ConfirmScreen("List the profiles of this folder?", detail, do="List them", dont="Not now")
        if await self._screen.app.push_screen_wait(question) is True:
            try:
                await off_loop(self._screen.engine.add_profile_folder, folder)
            except RankdeckError as error:
                self._screen.deck.show_error("The folder was not added to your settings", error)


def _is_other(entry: ProfileEntry, path: Path | None, name: str, own: ProfileEntry | None) -> bool:
    """Whether saving would replace a profile that is not the one in the form."""
    if entry.source == "shipped" or (own is not None and entry.path == own.path):
        return False
    return (
        entry.path.absolute() == path.absolute() if path is not None else entry.name == name and entry.source == "yours"
    )
