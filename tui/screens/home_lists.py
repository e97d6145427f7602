"""The lists of the home screen: runs and profiles. They are read again and again, can be filtered, and have a cursor each."""

import socket
import time
from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Container

from engine.core.catalogue import ProfileEntry
from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import RunSummary
from tui.data.off_loop import off_loop
from tui.keys import bindings, first_key
from tui.screens.base import DeckScreen
from tui.text.home import profile_lines, run_lines
from tui.widgets.headers import TitleBar
from tui.widgets.line_list import LineList

RUNS_SECONDS = 2.0  # seconds after which runs and profiles are read again; unchanged profiles are not read
FIRST_PROFILE = "quickstart"  # where the cursor begins for a user without own profiles


class ProfileList(LineList):
    BINDINGS = bindings("profiles")
    OPEN = "screen.launch"


class RunList(LineList):
    BINDINGS = bindings("runs")
    OPEN = "screen.attach"


class HomeLists(Container):
    """The runs and the profiles. `changed` is called when another one may be under the cursor, which begins on `profile`."""

    def __init__(self, screen: DeckScreen, changed: Callable[[], None], profile: str | None) -> None:
        super().__init__(id="lists")
        self._home, self._changed = screen, changed
        self.wanted = profile  # the profile that the cursor goes to when they are read again; None: it stays
        self.entries: list[ProfileEntry] | None = None  # all profiles, as they were read last; None: not yet read
        self.runs: list[RunSummary] | None = None  # all runs, likewise
        self._reading_runs = False
        self._reading_profiles = 0
        self._filter = ""
        self.profile_list = ProfileList(id="profiles", empty="reading")
        self.run_list = RunList(id="runs", empty=self._first_run)
        self.profile_list.border_title, self.run_list.border_title = "Profiles", "Runs"

    @property
    def _first_run(self) -> str:
        return f"No runs yet. Launch one with {first_key('profiles.launch', self._home.deck.keymap)}."

    def compose(self) -> ComposeResult:
        yield self.run_list
        yield self.profile_list

    def on_mount(self) -> None:
        """Reads once the screen has been painted."""
        if self.wanted is not None:
            self._home.set_focus(self.profile_list)
        self.call_after_refresh(self.read_again)
        self.set_interval(RUNS_SECONDS, self._read_if_seen)

    @property
    def known_runs(self) -> list[RunSummary]:
        return list(self.runs or ())

    @property
    def known_profiles(self) -> list[ProfileEntry]:
        return [entry for entry in self.entries or () if entry.profile is not None]

    def read_again(self) -> None:
        """Shows changes made meanwhile."""
        self.read_profiles()
        self._home.begin(self._read_runs, "runs")

    # --- reading ------------------------------------------------------------------------------------------------------

    def read_profiles(self) -> None:
        self._home.begin(self._read_profiles, "profiles", exclusive=True)

    async def _read_profiles(self) -> None:
        is_first = self.entries is None
        self._reading_profiles += 1
        try:
            self.entries = await off_loop(self._home.engine.profiles)
        finally:
            self._reading_profiles -= 1
        self._show_lists()
        if is_first and self.wanted is None and all(entry.source == "shipped" for entry in self.entries):
            self.wanted = FIRST_PROFILE
        found = next((str(entry.path) for entry in self.entries if entry.name == self.wanted), None)
        if found is not None:
            self.wanted = None
            self.profile_list.choose(found)

    async def _read_runs(self) -> None:
        # A file server that is slower than the timer must not be asked again before it has answered.
        if self._reading_runs:
            return
        self._reading_runs, is_first = True, self.runs is None
        try:
            self.runs = await off_loop(self._home.engine.runs)
        finally:
            self._reading_runs = False
        if is_first and not self.runs and self.run_list.has_focus:
            self._home.set_focus(self.profile_list)
        self._show_lists()

    def _read_if_seen(self) -> None:
        if self._home.is_current:
            self._home.begin(self._read_runs, "runs")
            # As with the runs, a slow file server is not asked again before it has answered.
            if not self._reading_profiles:
                self.read_profiles()

    # --- the lists ----------------------------------------------------------------------------------------------------

    def _show_lists(self) -> None:
        words = self._filter.lower().split()
        ascii, now = self._home.deck.ascii, time.time()
        if self.entries is not None:
            entries = self.entries
            lines = profile_lines(entries, ascii=ascii)
            kept = [
                (str(entry.path), line) for entry, line in zip(entries, lines, strict=True) if _has(line.plain, words)
            ]
            self.profile_list.say_when_empty(
                "Nothing matches."
                if words and entries
                else f"No profiles. {first_key('home.new', self._home.deck.keymap)} makes one."
            )
            self.profile_list.set_entries([path for path, _ in kept], lambda most: [line for _, line in kept])
        if self.runs is not None:
            runs = self.runs
            found = [run for run in runs if not words or _has(f"{run.run} {run.name} {run.state} {run.reason}", words)]
            self.run_list.say_when_empty("Nothing matches." if words and runs else self._first_run)
            self.run_list.set_entries(
                [run.run for run in found], lambda most: run_lines(found[:most], now, ascii=ascii)
            )
        alive = sum(run.state not in ENDED_WORDS for run in self.runs or ())
        host = socket.gethostname()
        self._home.query_one(TitleBar).show("rankdeck", f"{host} · {alive} active" if alive else host)
        self._changed()

    def chosen_entry(self) -> ProfileEntry | None:
        """The profile under the cursor of the list of profiles; None: the list is empty."""
        chosen = self.profile_list.chosen
        return next((entry for entry in self.entries or () if str(entry.path) == chosen), None)

    def run_under_cursor(self) -> RunSummary | None:
        """The run under the cursor of the list of runs; None: the list is empty."""
        chosen = self.run_list.chosen
        return next((run for run in self.runs or () if run.run == chosen), None)

    def chosen_run(self) -> RunSummary | None:
        """The run under the cursor if the list of runs has the focus, else None."""
        return self.run_under_cursor() if self.run_list.has_focus else None

    # --- the filter ---------------------------------------------------------------------------------------------------

    def filter(self, words: str) -> None:
        """Shows only profiles and runs that contain all words."""
        self._filter = words
        self._show_lists()

    def focus_found(self) -> None:
        """Goes to the profiles, or to the runs if only they have an entry."""
        found = self.profile_list.chosen is not None or self.run_list.chosen is None
        self._home.set_focus(self.profile_list if found else self.run_list)


def _has(text: str, words: list[str]) -> bool:
    return all(word in text.lower() for word in words)
