"""Home: the profiles with their plans, and the runs. Enter launches a profile or opens a run."""

from __future__ import annotations

import asyncio
import socket
import time
from functools import partial
from typing import ClassVar, Literal

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Input

from engine.core.catalogue import ProfileEntry
from engine.core.errors import RankdeckError
from engine.core.plan.profile import Profile
from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import RunSummary
from tui.data.editor import Frame
from tui.data.off_loop import off_loop
from tui.keys import bindings
from tui.screens.outside import open_in_editor
from tui.screens.relaunch import PastRun, RelaunchScreen
from tui.text.cells import plain_line
from tui.text.home import (
    FIRST_STEPS,
    parting_words,
    profile_lines,
    run_lines,
    run_text,
    runs_before_launch,
    untrusted_text,
)
from tui.text.lines import error_text, wrapped
from tui.text.plan import plan_text
from tui.widgets.headers import TitleBar
from tui.widgets.key_bar import KeyBar
from tui.widgets.line_list import LineList
from tui.widgets.text_pane import TextPane

RUNS_SECONDS = 2.0
"""Seconds after which runs and profiles are read again: a few small files each. Profiles that have not changed are not read."""

WARM_SECONDS = 0.8
"""Seconds for which the cursor rests on a profile before torch is imported for it."""

KEEP_WARM_SECONDS = 20.0
"""Seconds between two requests to keep torch imported for a profile."""

PREVIEW_SECONDS = 0.06
"""Seconds for which the cursor rests before a plan is made: holding an arrow key plans nothing."""

FIRST_PROFILE = "quickstart"
"""Where the cursor begins for a user without own profiles."""


class ProfileList(LineList):
    """The profiles."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("profiles")]


class RunList(LineList):
    """The runs."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("runs")]


class FilterLine(Input):
    """Where the filter is typed."""

    def __init__(self) -> None:
        super().__init__(compact=True, placeholder="filter by name, backend or state")
        self.cursor_blink = False


class HomeScreen(RelaunchScreen):
    """Profiles, runs, and the plan or the details of the one under the cursor.

    Args:
        profile: name of the profile that the cursor begins on.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("home")]
    AUTO_FOCUS = "#profiles"

    def __init__(self, profile: str | None = None) -> None:
        super().__init__()
        self._wanted = profile
        self._entries: list[ProfileEntry] | None = None
        self._runs: list[RunSummary] | None = None
        self._reading_runs = False
        self._reading_profiles = 0
        self._filter = ""
        self._shown: object = None

    def compose(self) -> ComposeResult:
        yield TitleBar("rankdeck", socket.gethostname(), ascii=self.deck.ascii)
        with Container(id="body"):
            with Container(id="lists"):
                profiles = ProfileList(id="profiles", empty="reading")
                profiles.border_title = "Profiles"
                yield profiles
                runs = RunList(id="runs", empty="No runs yet. Enter launches a profile.")
                runs.border_title = "Runs"
                yield runs
            plan = TextPane(id="plan", ascii=self.deck.ascii, focus=False)
            plan.border_title = "Plan"
            yield plan
        yield KeyBar()

    def on_mount(self) -> None:
        """Reads once the screen has been painted."""
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._read_profiles()
        self._read_runs()
        self.set_interval(RUNS_SECONDS, self._read_if_seen)

    @property
    def known_runs(self) -> list[RunSummary]:
        """Runs as they were read last."""
        return list(self._runs or ())

    @property
    def known_profiles(self) -> list[ProfileEntry]:
        """Profiles that can be launched, as they were read last."""
        return [entry for entry in self._entries or () if entry.profile is not None]

    @property
    def parting(self) -> str | None:
        return parting_words(self.known_runs)

    def choose_later(self, name: str) -> None:
        """Puts the cursor on a profile when the profiles are read again."""
        self._wanted = name

    def on_screen_resume(self) -> None:
        """Shows what has changed meanwhile."""
        if self._entries is not None:
            self._read_profiles()
            self._read_runs()

    # --- reading ------------------------------------------------------------------------------------------------------

    @work(exclusive=True, group="profiles", exit_on_error=False)
    async def _read_profiles(self) -> None:
        is_first = self._entries is None
        self._reading_profiles += 1
        try:
            self._entries = await off_loop(self.engine.profiles)
        finally:
            self._reading_profiles -= 1
        self._show_lists()
        if is_first and self._wanted is None and all(entry.source == "shipped" for entry in self._entries):
            self._wanted = FIRST_PROFILE
        found = next((str(entry.path) for entry in self._entries if entry.name == self._wanted), None)
        if found is not None:
            self._wanted = None
            self._profiles.choose(found)

    @work(group="runs", exit_on_error=False)
    async def _read_runs(self) -> None:
        # A file server that is slower than the timer must not be asked again meanwhile.
        if self._reading_runs:
            return
        self._reading_runs = True
        try:
            self._runs = await off_loop(self.engine.runs)
        finally:
            self._reading_runs = False
        self._show_lists()

    def _read_if_seen(self) -> None:
        if self.is_current:
            self._read_runs()
            # As with the runs, a slow file server is not asked again meanwhile.
            if not self._reading_profiles:
                self._read_profiles()

    # --- the lists ----------------------------------------------------------------------------------------------------

    @property
    def _profiles(self) -> ProfileList:
        return self.query_one(ProfileList)

    @property
    def _run_list(self) -> RunList:
        return self.query_one(RunList)

    def _show_lists(self) -> None:
        words = self._filter.lower().split()
        ascii, now = self.deck.ascii, time.time()
        if self._entries is not None:
            entries = self._entries
            lines = profile_lines(entries, ascii=ascii)
            kept = [(str(entry.path), line) for entry, line in zip(entries, lines, strict=True) if _has(line, words)]
            self._profiles.say_when_empty("Nothing matches." if words and entries else "No profiles. n makes one.")
            self._profiles.set_entries(kept)
        if self._runs is not None:
            runs = self._runs
            lines = run_lines(runs, now, ascii=ascii)
            kept = [
                (run.run, line)
                for run, line in zip(runs, lines, strict=True)
                if _has(line, [*words], run.run, run.state)
            ]
            first = "No runs yet. Enter launches a profile."
            self._run_list.say_when_empty("Nothing matches." if words and runs else first)
            self._run_list.set_entries(kept)
        self._show_counts()
        self._show_choice()

    def _show_counts(self) -> None:
        alive = sum(run.state not in ENDED_WORDS for run in self._runs or ())
        host = socket.gethostname()
        self.query_one(TitleBar).show("rankdeck", f"{host} · {alive} active" if alive else host)

    def _entry(self) -> ProfileEntry | None:
        chosen = self._profiles.chosen
        return next((entry for entry in self._entries or () if str(entry.path) == chosen), None)

    def _run(self) -> RunSummary | None:
        chosen = self._run_list.chosen
        return next((run for run in self._runs or () if run.run == chosen), None)

    @property
    def past_run(self) -> PastRun | None:
        run = self._chosen_run()
        return None if run is None else PastRun(run.run, run.name)

    def _chosen_run(self) -> RunSummary | None:
        """The run under the cursor while the keys go to the runs."""
        return self._run() if self._run_list.has_focus else None

    # --- what is chosen -----------------------------------------------------------------------------------------------

    def on_option_list_option_highlighted(self) -> None:
        self._show_choice()

    def on_descendant_focus(self) -> None:
        """Shows what belongs to the list with the focus."""
        self._show_choice()

    def _show_choice(self) -> None:
        """Shows what the cursor is on, unless the pane shows it already."""
        choice = self._chosen_run() or self._entry()
        self.refresh_bindings()
        if (choice, self._entries == []) == self._shown:
            return
        self._shown = choice, self._entries == []
        self.workers.cancel_group(self, "preview")
        pane = self.query_one("#plan", TextPane)
        ascii = self.deck.ascii
        match choice:
            case RunSummary():
                title = f"Run: {plain_line(choice.name)}"
                pane.show_text(lambda width: run_text(choice, width, time.time(), ascii=ascii), title=title)
            case ProfileEntry(profile=None):
                error = RankdeckError(choice.error or "is unreadable", hint="e opens the file in your editor")
                pane.show_text(partial(error_text, error), title=f"Profile: {plain_line(choice.name)}")
            case ProfileEntry(profile=Profile() as profile):
                self._preview(choice, profile, f"Plan: {plain_line(choice.name)} ({choice.source})")
            case None if self._entries == []:
                pane.show_text(_first_steps, title="First steps")
            case None:
                pane.show_text(lambda width: Content(""), title="Plan")

    @work(exclusive=True, group="preview", exit_on_error=False)
    async def _preview(self, entry: ProfileEntry, profile: Profile, title: str) -> None:
        await asyncio.sleep(PREVIEW_SECONDS)
        pane = self.query_one("#plan", TextPane)
        trusted = entry.source != "here" or await off_loop(self.engine.is_trusted, profile)
        if not trusted and runs_before_launch(profile):
            pane.show_text(partial(untrusted_text, entry, profile), title=title)
            return
        try:
            plan = await off_loop(self.engine.preview, profile)
        except RankdeckError as error:
            pane.show_text(partial(error_text, error), title=title)
        else:
            pane.show_text(partial(plan_text, plan, ascii=self.deck.ascii), title=title)
            await asyncio.sleep(WARM_SECONDS)
            while trusted:
                if self.is_current:
                    await self.engine.prewarm(profile)
                await asyncio.sleep(KEEP_WARM_SECONDS)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers only keys that do something now."""
        match action:
            case "check_profile" | "edit_profile" | "duplicate_profile" if self.is_mounted and self._chosen_run():
                return True
            case "edit_profile":
                return self.is_mounted and self._entry() is not None
            case "launch" | "check_profile" | "duplicate_profile":
                entry = self._entry() if self.is_mounted else None
                return entry is not None and entry.profile is not None
            case "change_run":
                return self.is_mounted and self._chosen_run() is not None
            case "attach":
                return self.is_mounted and self._run() is not None
            case "clear_filter":
                return bool(self.query(FilterLine))
        return True

    def action_launch(self) -> None:
        if (entry := self._entry()) is not None:
            self.deck.launch_entry(entry)

    def action_check_profile(self) -> None:
        """Checks the nodes of the profile under the cursor, or of what the run under the cursor was launched with."""
        if self._chosen_run() is not None:
            self.with_launched(self.deck.open_check)
        elif (entry := self._entry()) is not None:
            self.deck.open_check(entry)

    def action_attach(self) -> None:
        if (run := self._run()) is not None:
            self.deck.open_run(run.run)

    def action_new_profile(self) -> None:
        self.deck.open_form(None)

    def action_edit_profile(self) -> None:
        """Opens the profile under the cursor as a form, or the profile of the run under the cursor. One that is not valid is
        opened in the user's editor."""
        if (run := self._chosen_run()) is None:
            entry = self._entry()
            if entry is not None and entry.profile is None:
                said = open_in_editor(self.app, Frame(str(entry.path), entry.line or 1))
                self.say(said.text, error=said.is_error)
                self._read_profiles()
            else:
                self.deck.open_form(entry)
            return
        entry = next((entry for entry in self._entries or () if entry.name == run.name), None)
        if entry is not None and entry.profile is not None:
            self.deck.open_form(entry)
        else:
            problem = "can't be read" if entry is not None else "does not exist any more"
            words = f"the profile {run.name} {problem}; d makes a new one from what this run was launched with"
            self.say(plain_line(words), error=True)

    def action_duplicate_profile(self) -> None:
        """Opens a copy of the profile under the cursor as a form, or of what the run under the cursor was launched with."""
        if self._chosen_run() is not None:
            self.with_launched(partial(self.deck.open_form, duplicate=True))
        else:
            self.deck.open_form(self._entry(), duplicate=True)

    def action_history(self) -> None:
        self.deck.open_history()

    def action_list(self, name: Literal["profiles", "runs"]) -> None:
        self.set_focus(self._profiles if name == "profiles" else self._run_list)  # now: another key may wait already

    def action_scroll_plan(self, lines: int) -> None:
        self.query_one("#plan", TextPane).scroll_relative(y=lines, animate=False)

    # --- the filter ---------------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """Opens the filter. It is created on demand: the first paint is quicker without."""
        search = next(iter(self.query(FilterLine)), None)
        if search is None:
            search = FilterLine()
            self.mount(search, before=self.query_one(KeyBar))
        search.focus()
        self.refresh_bindings()

    def action_clear_filter(self) -> None:
        self.query(FilterLine).remove()
        self._filter = ""
        self._show_lists()
        self.set_focus(self._profiles)

    @on(Input.Changed)
    def _filter_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._show_lists()

    @on(Input.Submitted)
    def _filter_done(self, event: Input.Submitted) -> None:
        found = self._profiles.chosen is not None or self._run_list.chosen is None
        self.set_focus(self._profiles if found else self._run_list)
        if not event.value:
            self.action_clear_filter()


def _has(line: Content, words: list[str], *more: str) -> bool:
    text = " ".join((line.plain, *more)).lower()
    return all(word in text for word in words)


def _first_steps(width: int) -> Content:
    return Content("\n".join("\n".join(wrapped(line, width)) for line in FIRST_STEPS))
