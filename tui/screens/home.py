"""Home: the runs, and the profiles with their plans. Enter opens a run or launches a profile."""

import asyncio
import contextlib
import socket
import time
from functools import partial
from typing import Literal

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.widgets import Input

from engine.client.editor import Frame
from engine.client.protocols import EngineClient
from engine.core.catalogue import ProfileEntry
from engine.core.errors import RankdeckError
from engine.core.plan.profile import Profile
from engine.core.plan.settings import changes
from engine.core.views.view import RunSummary
from tui.data.off_loop import off_loop
from tui.keys import bindings, first_key
from tui.screens.base import DeckScreen
from tui.screens.home_lists import HomeLists
from tui.screens.outside import open_in_editor
from tui.screens.relaunch import Relaunching
from tui.text.cells import plain_line
from tui.text.home import Look, first_steps, parting_words, run_text
from tui.text.lines import error_text
from tui.text.plan import plan_text
from tui.widgets.headers import TitleBar
from tui.widgets.key_bar import KeyBar
from tui.widgets.text_pane import TextPane

WARM_SECONDS = 0.8  # seconds for which the cursor rests on a profile before torch is imported for it
KEEP_WARM_SECONDS = 20.0  # seconds between two requests to keep torch imported for a profile

PREVIEW_SECONDS = 0.06  # seconds for which the cursor rests before a plan is made: holding an arrow key plans nothing


class FilterLine(Input):
    def __init__(self) -> None:
        super().__init__(compact=True, placeholder="filter by name, backend or state")
        self.cursor_blink = False


class HomeScreen(DeckScreen):
    """Runs, profiles, and the details or the plan of the one under the cursor, which begins on `profile`, or on the newest run."""

    BINDINGS = bindings("home")
    AUTO_FOCUS = "#runs"

    def __init__(self, profile: str | None = None) -> None:
        super().__init__()
        self._shown: object = None
        self._has_variables = False  # whether plans have the variables that rankdeck sets
        self._looked: tuple[str, Look] | None = None  # the run that was looked at last
        self.lists = HomeLists(self, self.show_choice, profile)
        self._past = Relaunching(self, self.lists.chosen_run)
        self.add_parts(self._past)

    def compose(self) -> ComposeResult:
        yield TitleBar("rankdeck", socket.gethostname(), ascii=self.deck.ascii)
        with Container(id="body"):
            yield self.lists
            plan = TextPane(id="plan", ascii=self.deck.ascii, focus=False)
            plan.border_title = "Plan"
            yield plan
        yield KeyBar()

    @property
    def parting(self) -> str | None:
        return parting_words(self.lists.known_runs)

    def on_screen_resume(self) -> None:
        if self.lists.entries is not None:
            self.lists.read_again()

    # --- what is chosen -----------------------------------------------------------------------------------------------

    def on_option_list_option_highlighted(self) -> None:
        self.show_choice()

    def on_descendant_focus(self) -> None:
        """Shows what belongs to the list with the focus."""
        self.show_choice()

    def show_choice(self) -> None:
        """Shows the item under the cursor, unless the pane shows it already."""
        choice = self.lists.chosen_run() or self.lists.chosen_entry()
        self.refresh_bindings()
        if (choice, self.lists.entries == []) == self._shown:
            return
        self._shown = choice, self.lists.entries == []
        self.workers.cancel_group(self, "preview")
        pane = self.query_one("#plan", TextPane)
        match choice:
            case RunSummary():
                looked = self._looked
                self._show_run(choice, looked[1] if looked is not None and looked[0] == choice.run else None)
                self._look_at(choice)
            case ProfileEntry(profile=None):
                hint = f"{first_key('home.edit', self.deck.keymap)} opens the file in your editor"
                error = RankdeckError(choice.error or "is unreadable", hint=hint)
                pane.show_text(partial(error_text, error), title=f"Profile: {plain_line(choice.name)}")
            case ProfileEntry(profile=Profile() as profile):
                self._preview(choice, profile, f"Plan: {plain_line(choice.name)} ({choice.source})")
            case None if self.lists.entries == []:
                pane.show_text(partial(first_steps, key=first_key("home.new", self.deck.keymap)), title="First steps")
            case None:
                pane.show_text(lambda width: Content(""), title="Plan")

    def _show_run(self, run: RunSummary, look: Look | None) -> None:
        key, ascii = first_key("runs.attach", self.deck.keymap), self.deck.ascii
        self.query_one("#plan", TextPane).show_text(
            lambda width: run_text(run, width, time.time(), key=key, ascii=ascii, look=look),
            title=f"Run: {plain_line(run.name)}",
        )

    @work(exclusive=True, group="preview", exit_on_error=False)
    async def _look_at(self, run: RunSummary) -> None:
        """Adds what the files of a run say. A run that can't be read is shown as the list knows it."""
        await asyncio.sleep(PREVIEW_SECONDS)
        same = (one for one in self.lists.known_runs if one.name == run.name)
        before = next((one.run for one in same if one.launched_at < run.launched_at), None)
        with contextlib.suppress(RankdeckError):
            self._looked = run.run, await off_loop(_read_look, self.engine, run.run, before)
            self._show_run(run, self._looked[1])

    @work(exclusive=True, group="preview", exit_on_error=False)
    async def _preview(self, entry: ProfileEntry, profile: Profile, title: str) -> None:
        await asyncio.sleep(PREVIEW_SECONDS)
        pane = self.query_one("#plan", TextPane)
        permit = await off_loop(self.engine.permit, entry)
        try:
            plan = await off_loop(self.engine.preview, profile, permit)
        except RankdeckError as error:
            pane.show_text(partial(error_text, error), title=title)
        else:
            trust, show = (first_key(id, self.deck.keymap) for id in ("profiles.trust", "profiles.variables"))
            by = "" if self._has_variables else f"{show} shows them"
            text = partial(plan_text, plan, ascii=self.deck.ascii, trusted_by=f"{trust} trusts it", shown_by=by)
            pane.show_text(text, title=title)
            await asyncio.sleep(WARM_SECONDS)
            while plan.is_looked_up:
                if self.is_current:
                    await self.engine.prewarm(profile, await off_loop(self.engine.permit, entry))  # files may change
                await asyncio.sleep(KEEP_WARM_SECONDS)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "check_profile" | "edit_profile" | "duplicate_profile" if self.is_mounted and self.lists.chosen_run():
                return True
            case "edit_profile":
                return self.is_mounted and self.lists.chosen_entry() is not None
            case "launch" | "trust_profile" | "check_profile" | "duplicate_profile":
                entry = self.lists.chosen_entry() if self.is_mounted else None
                return entry is not None and entry.profile is not None
            case "change_run":
                return self.is_mounted and self.lists.chosen_run() is not None
            case "attach":
                return self.is_mounted and self.lists.run_under_cursor() is not None
            case "clear_filter":
                return bool(self.query(FilterLine))
        return True

    def action_launch(self) -> None:
        if (entry := self.lists.chosen_entry()) is not None:
            self.deck.launch_entry(entry)

    @work(group="trust", exclusive=True, exit_on_error=False)
    async def action_trust_profile(self) -> None:
        """Asks whether the programs of the profile under the cursor may run, and makes its plan again."""
        from tui.screens.trust import ask_for_trust

        if (entry := self.lists.chosen_entry()) is not None:
            await ask_for_trust(self.app, self.engine, entry)
            self._shown = None
            self.show_choice()

    def action_variables(self) -> None:
        self._has_variables, self._shown = not self._has_variables, None
        self.show_choice()

    def action_check_profile(self) -> None:
        """Checks the nodes of the profile under the cursor, or of the profile of the run under the cursor."""
        if self.lists.chosen_run() is not None:
            self._past.with_launched(self.deck.open_check)
        elif (entry := self.lists.chosen_entry()) is not None:
            self.deck.open_check(entry)

    def action_attach(self) -> None:
        if (run := self.lists.run_under_cursor()) is not None:
            self.deck.open_run(run.run)

    def action_new_profile(self) -> None:
        self.deck.open_form(None)

    def action_import_command(self) -> None:
        """Asks for a command of another launcher, and shows it as a form."""
        from tui.screens.import_command import ImportScreen

        self.app.push_screen(ImportScreen(), lambda text: self._import(text or ""))

    def on_paste(self, event: events.Paste) -> None:
        """Takes text that is pasted for a command of another launcher."""
        if self.deck.read_only:
            self.say("rankdeck can't change anything: it was opened with --read-only", error=True)
        else:
            self._import(event.text)

    def _import(self, command: str) -> None:
        if command := command.strip():
            self.deck.open_command(command)

    def action_edit_profile(self) -> None:
        """Opens the profile under the cursor as a form, or the profile of the run under the cursor. A profile that is not valid is opened
        in the user's editor."""
        if (run := self.lists.chosen_run()) is None:
            entry = self.lists.chosen_entry()
            if entry is not None and entry.profile is None:
                said = open_in_editor(self.app, Frame(str(entry.path), entry.line or 1))
                self.say(said.text, error=said.is_error)
                self.lists.read_profiles()
            else:
                self.deck.open_form(entry)
            return
        entry = next((entry for entry in self.lists.entries or () if entry.name == run.name), None)
        if entry is not None and entry.profile is not None:
            self.deck.open_form(entry)
        else:
            problem = "can't be read" if entry is not None else "does not exist any more"
            key = first_key("home.duplicate", self.deck.keymap)
            words = f"the profile {run.name} {problem}; {key} makes a new one from what this run was launched with"
            self.say(plain_line(words), error=True)

    def action_duplicate_profile(self) -> None:
        """Opens a copy of the profile under the cursor as a form, or of the profile of the run under the cursor."""
        form = partial(self.deck.open_form, duplicate=True)
        self._past.with_launched(form) if self.lists.chosen_run() is not None else form(self.lists.chosen_entry())

    def action_history(self) -> None:
        self.deck.open_history()

    def action_list(self, name: Literal["profiles", "runs"]) -> None:
        lists = self.lists
        self.set_focus(
            lists.profile_list if name == "profiles" else lists.run_list
        )  # now: another key may wait already

    def action_scroll_plan(self, lines: int) -> None:
        self.query_one("#plan", TextPane).scroll_relative(y=lines, animate=False)

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
        self.lists.filter("")
        self.set_focus(self.lists.profile_list)

    @on(Input.Changed)
    def _filter_changed(self, event: Input.Changed) -> None:
        self.lists.filter(event.value)

    @on(Input.Submitted)
    async def _filter_done(self, event: Input.Submitted) -> None:
        self.lists.focus_found()
        if not event.value:
            await self.action_clear_filter()


def _read_look(engine: EngineClient, run: str, before: str | None) -> Look:
    """Reads the files of a run, and what has changed since the run before. Raises RankdeckError."""
    own, changed = engine.compared(run), None
    with contextlib.suppress(RankdeckError):
        if before is not None and own.side.settings is not None:
            earlier = engine.compared(before).side.settings
            changed = None if earlier is None else changes(earlier, own.side.settings)
    return Look(own.snapshot, changed)
