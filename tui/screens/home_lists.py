"""The lists of the home screen: profiles and runs, read again and again, filtered, with a cursor in each."""

from __future__ import annotations

import socket
import time
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Input

from engine.core.catalogue import ProfileEntry
from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import RunSummary
from tui.data.off_loop import off_loop
from tui.keys import bindings, first_key
from tui.screens.relaunch import RelaunchScreen
from tui.text.home import profile_lines, run_lines
from tui.widgets.headers import TitleBar
from tui.widgets.key_bar import KeyBar
from tui.widgets.line_list import LineList

RUNS_SECONDS = 2.0
"""Seconds after which runs and profiles are read again: a few small files each. Profiles that have not changed are not read."""

FIRST_PROFILE = "quickstart"
"""Where the cursor begins for a user without own profiles."""


class ProfileList(LineList):
    """The profiles."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("profiles")]
    OPEN = "screen.launch"


class RunList(LineList):
    """The runs."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("runs")]
    OPEN = "screen.attach"


class FilterLine(Input):
    """Where the filter is typed."""

    def __init__(self) -> None:
        super().__init__(compact=True, placeholder="filter by name, backend or state")
        self.cursor_blink = False


class ListsScreen(RelaunchScreen):
    """A screen with the profiles and the runs.

    Args:
        profile: name of the profile that the cursor begins on.
    """

    def __init__(self, profile: str | None = None) -> None:
        super().__init__()
        self._wanted = profile
        self.entries: list[ProfileEntry] | None = None
        """All profiles, as they were read last; None: not yet read."""
        self.runs: list[RunSummary] | None = None
        """All runs, likewise."""
        self._reading_runs = False
        self._reading_profiles = 0
        self._filter = ""

    @property
    def _first_run(self) -> str:
        return f"No runs yet. Launch one with {first_key('profiles.launch', self.deck.keymap)}."

    def compose_lists(self) -> ComposeResult:
        """The two lists, empty until they have been read."""
        profiles = ProfileList(id="profiles", empty="reading")
        profiles.border_title = "Profiles"
        yield profiles
        runs = RunList(id="runs", empty=self._first_run)
        runs.border_title = "Runs"
        yield runs

    def on_mount(self) -> None:
        """Reads once the screen has been painted."""
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.read_profiles()
        self._read_runs()
        self.set_interval(RUNS_SECONDS, self._read_if_seen)

    def show_choice(self) -> None:
        """Called when another profile or run may be under the cursor."""
        raise NotImplementedError

    @property
    def known_runs(self) -> list[RunSummary]:
        """Runs as they were read last."""
        return list(self.runs or ())

    @property
    def known_profiles(self) -> list[ProfileEntry]:
        """Profiles that can be launched, as they were read last."""
        return [entry for entry in self.entries or () if entry.profile is not None]

    def choose_later(self, name: str) -> None:
        """Puts the cursor on a profile when the profiles are read again."""
        self._wanted = name

    def on_screen_resume(self) -> None:
        """Shows what has changed meanwhile."""
        if self.entries is not None:
            self.read_profiles()
            self._read_runs()

    # --- reading ------------------------------------------------------------------------------------------------------

    @work(exclusive=True, group="profiles", exit_on_error=False)
    async def read_profiles(self) -> None:
        """Reads the profiles, and puts the cursor on the wanted one."""
        is_first = self.entries is None
        self._reading_profiles += 1
        try:
            self.entries = await off_loop(self.engine.profiles)
        finally:
            self._reading_profiles -= 1
        self._show_lists()
        if is_first and self._wanted is None and all(entry.source == "shipped" for entry in self.entries):
            self._wanted = FIRST_PROFILE
        found = next((str(entry.path) for entry in self.entries if entry.name == self._wanted), None)
        if found is not None:
            self._wanted = None
            self.profile_list.choose(found)

    @work(group="runs", exit_on_error=False)
    async def _read_runs(self) -> None:
        # A file server that is slower than the timer must not be asked again before it has answered.
        if self._reading_runs:
            return
        self._reading_runs = True
        try:
            self.runs = await off_loop(self.engine.runs)
        finally:
            self._reading_runs = False
        self._show_lists()

    def _read_if_seen(self) -> None:
        if self.is_current:
            self._read_runs()
            # As with the runs, a slow file server is not asked again before it has answered.
            if not self._reading_profiles:
                self.read_profiles()

    # --- the lists ----------------------------------------------------------------------------------------------------

    @property
    def profile_list(self) -> ProfileList:
        """The list of profiles."""
        return self.query_one(ProfileList)

    @property
    def run_list(self) -> RunList:
        """The list of runs."""
        return self.query_one(RunList)

    def _show_lists(self) -> None:
        words = self._filter.lower().split()
        ascii, now = self.deck.ascii, time.time()
        if self.entries is not None:
            entries = self.entries
            lines = profile_lines(entries, ascii=ascii)
            kept = [(str(entry.path), line) for entry, line in zip(entries, lines, strict=True) if _has(line, words)]
            self.profile_list.say_when_empty(
                "Nothing matches."
                if words and entries
                else f"No profiles. {first_key('home.new', self.deck.keymap)} makes one."
            )
            self.profile_list.set_entries(kept)
        if self.runs is not None:
            runs = self.runs
            lines = run_lines(runs, now, ascii=ascii)
            kept = [
                (run.run, line)
                for run, line in zip(runs, lines, strict=True)
                if _has(line, [*words], run.run, run.state)
            ]
            self.run_list.say_when_empty("Nothing matches." if words and runs else self._first_run)
            self.run_list.set_entries(kept)
        self._show_counts()
        self.show_choice()

    def _show_counts(self) -> None:
        alive = sum(run.state not in ENDED_WORDS for run in self.runs or ())
        host = socket.gethostname()
        self.query_one(TitleBar).show("rankdeck", f"{host} · {alive} active" if alive else host)

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

    async def action_filter(self) -> None:
        """Opens the filter; the next key goes into it. Its line is created here, because the first paint is quicker without it."""
        search = next(iter(self.query(FilterLine)), None)
        if search is None:
            search = FilterLine()
            await self.mount(search, before=self.query_one(KeyBar))
        self.set_focus(search)
        self.refresh_bindings()

    async def action_clear_filter(self) -> None:
        await self.query(FilterLine).remove()
        self._filter = ""
        self._show_lists()
        self.set_focus(self.profile_list)

    @on(Input.Changed)
    def _filter_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._show_lists()

    @on(Input.Submitted)
    async def _filter_done(self, event: Input.Submitted) -> None:
        found = self.profile_list.chosen is not None or self.run_list.chosen is None
        self.set_focus(self.profile_list if found else self.run_list)
        if not event.value:
            await self.action_clear_filter()


def _has(line: Content, words: list[str], *more: str) -> bool:
    text = " ".join((line.plain, *more)).lower()
    return all(word in text for word in words)
