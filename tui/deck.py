"""The app as screens and the command palette see it: the app implements this protocol, and they know nothing else of the app."""

from collections.abc import Callable, Mapping
from typing import Protocol

from engine.client.protocols import EngineClient
from engine.core.catalogue import ProfileEntry
from engine.core.errors import RankdeckError
from engine.core.plan.profile import Profile
from engine.core.settings import Look, Units
from engine.core.views.view import RunSummary


class Deck(Protocol):
    """The app as its screens see it. `ascii`: draws with ASCII characters only. `slow`: paints once a second. `read_only`: offers no key
    that starts, changes or ends something. `keymap`: keys that the user has changed, by id. `look`: how runs are shown. `units`: how
    values are written."""

    engine: EngineClient
    ascii: bool
    slow: bool
    read_only: bool
    keymap: Mapping[str, str]
    look: Look
    units: Units

    @property
    def known_runs(self) -> list[RunSummary]:
        """Runs as home has read them last."""

    @property
    def known_profiles(self) -> list[ProfileEntry]:
        """Profiles that can be launched, as home has read them last."""

    def open_run(self, run: str) -> None: ...

    def open_history(self) -> None:
        """Shows every run that is kept."""

    def open_compare(self, runs: tuple[str, ...]) -> None:
        """Shows runs side by side. `runs`: ids of two or more, oldest first."""

    def open_form(self, entry: ProfileEntry | None, *, duplicate: bool = False) -> None:
        """Shows a profile as a form."""

    def open_command(self, command: str) -> object:
        """Shows the profile of another launcher's command as a form, in place of an open form."""

    def open_check(self, entry: ProfileEntry) -> None:
        """Checks the nodes of a profile for problems that would otherwise appear after launch; asks first where it is not trusted."""

    def profile_saved(self, name: str) -> None:
        """Puts the cursor of home on a profile, for when the user comes back there."""

    def launch_entry(self, entry: ProfileEntry) -> object:
        """Launches a profile as a file has it; asks first where it is not trusted."""

    def launch(self, profile: Profile) -> None:
        """Launches a profile and shows the run. Does nothing while another launch is under way."""

    def choose_theme(self, name: str) -> None:
        """Changes the colours, and, unless `read_only`, keeps that in the user's settings."""

    def keep_look(self, **fields: object) -> None:
        """Keeps in the user's settings how runs are shown, unless `read_only`. `fields`: changed fields of `Look`."""

    def choose_from(self, options: Mapping[str, str], act: Callable[[str], object], what: str) -> None:
        """Shows a list of options, each with a line about it, that a part of a name filters; `what`: an option, in words."""

    def say(self, text: str, *, error: bool = False, seconds: float | None = None) -> None:
        """Shows a notice in place of the one before. Never markup. `seconds`: how long it is shown; None: as long as a sentence takes
        to read."""

    def show_error(self, title: str, error: RankdeckError) -> None: ...

    def leave(self, parting: str | None = None) -> None:
        """Ends the app, and only the app. `parting` is printed after the terminal is restored."""
