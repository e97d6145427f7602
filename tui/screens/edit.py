"""A profile as a form, with its plan beside it: new, edit, duplicate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.widget import Widget
from textual.widgets import Input, Static

from engine.core.catalogue import BackendInfo, ProfileEntry, RecipeInfo
from engine.core.errors import ProfileError, RankdeckError
from engine.core.plan.environment import EnvWarning
from engine.core.plan.profile import Profile
from tui.data.form import errors_of, free_name, line_of_error, profile_of, values_of
from tui.data.form_lines import (
    BACKEND,
    DECIDING,
    OWN_SCRIPT,
    RECIPE,
    Field,
    fields,
    own_script,
    script_in,
)
from tui.data.off_loop import off_loop
from tui.data.path_lines import PathSuggester
from tui.keys import bindings, first_key
from tui.screens.confirm import ConfirmScreen, LeaveScreen
from tui.screens.edit_choosing import ChoosingScreen
from tui.screens.script import ScriptScreen
from tui.text.cells import plain_line
from tui.text.lines import error_text
from tui.text.plan import backends_text, plan_text
from tui.text.recipes import recipes_text
from tui.widgets.choice import UNSET, Choice
from tui.widgets.command_line import CommandLine
from tui.widgets.form_row import Form, FormRow
from tui.widgets.headers import TitleBar
from tui.widgets.key_bar import KeyBar
from tui.widgets.text_pane import TextPane

PLAN_SECONDS = 0.2
"""Pause in typing before the plan is made again, in seconds."""


class EditScreen(ChoosingScreen):
    """A form.

    Args:
        entry: the profile; None: a new one.
        duplicate: whether the form makes a new profile of it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("edit")]

    def __init__(self, entry: ProfileEntry | None, *, duplicate: bool = False) -> None:
        is_here = entry is not None and duplicate and entry.source == "here"  # a duplicate stays beside its original
        is_new = duplicate or (entry is not None and entry.source == "command")
        super().__init__(None if is_new else entry, entry.path.parent if entry is not None and is_here else None)
        self._base = entry.profile if entry is not None else None
        self._suffix = "-copy" if duplicate else ""
        self._recipes: list[RecipeInfo] = []
        self._backends: list[BackendInfo] = []
        self._available: list[BackendInfo] = []
        """The backends, with what the nodes in the form lack for each; empty before the first check."""
        self._shown_line = ""
        """The line whose choices are shown in place of the plan; empty: the plan is shown."""
        self._values: dict[str, str] = {}
        self._saved: dict[str, str] = {}
        self._profile: Profile | None = None

    def compose(self) -> ComposeResult:
        yield TitleBar("", ascii=self.deck.ascii)
        with Container(id="edit"):
            form = Form(id="form", classes="pane")
            form.border_title = "Profile"
            yield form
            plan = TextPane(id="plan", ascii=self.deck.ascii, focus=False)
            plan.border_title = "Plan"
            yield plan
        yield Static(id="hint", markup=False)
        yield KeyBar()

    def on_mount(self) -> None:
        """Fills the form after reading what can be chosen."""
        self._begin()

    @work(exclusive=True, group="form", exit_on_error=False)
    async def _begin(self) -> None:
        self._recipes = await off_loop(self.engine.recipes)
        self._backends = await off_loop(self.engine.backends)
        await self._read_script(values_of(self._base, self._recipes))
        self._values = values_of(self._base, self._recipes)
        if self.entry is None:
            taken = {entry.name for entry in await off_loop(self.engine.profiles)}
            self._values["name"] = free_name(f"{self._base.name[:56]}{self._suffix}" if self._base else "my-run", taken)
        # A form without input can be left without a question.
        self._saved = dict(self._values)
        self._show_title()
        await self._build()
        first = next(iter(self.query(FormRow)), None)
        if first is not None and self.focused is None:
            first.line.focus()
        self._plan()

    async def _read_script(self, values: Mapping[str, str]) -> bool:
        """Reads what the user's script in the form declares. Returns whether that is other than before."""
        place = script_in(values)
        found = () if place is None else await off_loop(self.engine.arguments, *place)
        known, self._recipes = self._recipes, own_script(self._recipes, found)
        return known != self._recipes

    async def _build(self) -> None:
        """Makes the lines that belong to the choices; lines that stay are not touched."""
        wanted = fields(self._values, self._recipes, self._backends)
        form = self.query_one(Form)
        rows = {row.field.id: row for row in self.query(FormRow)}
        kept = {field.id for field in wanted if field.id in rows and rows[field.id].field == field}
        for key, row in rows.items():
            if key not in kept:
                await row.remove()
        above: Widget | None = None
        for stays, group in groupby(wanted, key=lambda field: field.id in kept):
            if stays:
                above = rows[[field.id for field in group][-1]]
                continue
            new = [self._row(field) for field in group]
            await form.mount(*new, after=above) if above is not None else await form.mount(*new, before=0)
            above = new[-1]

    def _row(self, field: Field) -> FormRow:
        ending = {"script": ".py", "file": "", "folder": None}.get(field.path, "")
        suggester = PathSuggester(self._folder_of(field), ending) if field.path else None
        value, is_new = self._values.get(field.id, ""), self.entry is None
        return FormRow(field, value, ascii=self.deck.ascii, suggester=suggester, takes_commands=is_new)

    def _folder_of(self, field: Field) -> Callable[[], Path]:
        """Where a relative path in a line begins."""
        return self.script_folder if field.path == "script" else Path.cwd

    def value_of(self, line: str) -> str:
        self._read_lines()
        return self._values.get(line, "")

    @on(CommandLine.Pasted)
    def _command_pasted(self, message: CommandLine.Pasted) -> None:
        """Fills the form from a launch command; asks first if something would be lost."""

        def answered(yes: bool | None) -> None:
            if yes:
                self.deck.open_command(message.text)

        if self.is_changed:
            detail = "A form of the pasted command takes the place of this one. Your changes are lost."
            self.app.push_screen(ConfirmScreen("Fill the form again?", detail, do="Fill"), answered)
        else:
            self.deck.open_command(message.text)

    # --- typing -------------------------------------------------------------------------------------------------------

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        if isinstance(event.input.parent, FormRow) and event.input.is_attached:
            self._took(event.input.parent.field.id, event.value)

    @on(Choice.Changed)
    async def _chosen(self, event: Choice.Changed) -> None:
        if isinstance(event.choice.parent, FormRow):
            self._took(event.choice.parent.field.id, event.choice.value)
            if event.choice.parent.field.id in DECIDING:
                await self._build()
            self._show_hint()

    def _took(self, key: str, value: str) -> None:
        self._values[key] = value
        self._show_title()
        self._plan()

    def _read_lines(self) -> None:
        """Takes the values that are in the lines now: the message about the last key may still be under way."""
        for row in self.query(FormRow):
            self._values[row.field.id] = row.line.value

    @on(Input.Submitted)
    def _next_line(self) -> None:
        self.focus_next()

    def on_descendant_focus(self) -> None:
        """Explains the line with the cursor and shows all of it. On their lines, the pane shows all backends or recipes."""
        self._show_hint()
        self.call_after_refresh(self.query_one(Form).show_whole)
        if self._chosen_line != self._shown_line:
            self._shown_line = self._chosen_line
            self._plan()

    def _show_hint(self) -> None:
        row = self.focused.parent if self.focused is not None else None
        if isinstance(row, FormRow):
            value = self._values.get(row.field.id, "")
            meaning = dict(row.field.choices).get(value, "")
            if row.field.id == BACKEND:
                meaning = next(
                    (f"can't run: {one.trouble}" for one in self._available if one.name == value and one.trouble),
                    meaning,
                )
            told = row.field.help if row.field.help.endswith(".") else f"{row.field.help};"
            text = f"{told} {value or UNSET}: {meaning}" if meaning else row.field.help
            before, after, read = (
                first_key(id, self.deck.keymap) for id in ("choice.previous", "choice.next", "edit.script")
            )
            script = f"; {read}: its script" if row.field.id == RECIPE and self._recipe else ""
            text += f" ({before}, {after}: another{script})" if row.field.choices else ""
            text += (
                f" ({first_key('edit.choose_script', self.deck.keymap)}: choose one)"
                if row.field.path == "script"
                else ""
            )
            text += " (right: take what is offered)" if row.field.path else ""
            self.query_one("#hint", Static).update(plain_line(text))

    @property
    def is_changed(self) -> bool:
        """Whether the form differs from what was saved."""
        self._read_lines()
        return any(self._values.get(key, "") != self._saved.get(key, "") for key in {*self._values, *self._saved})

    def _show_title(self) -> None:
        name = plain_line(self._values.get("name", "")) or "new run"
        if self.entry is None:
            title, note = f"New: {name}", "not saved yet; paste a launch command to fill it in"
        else:
            source = self.entry.source
            origin = "as a run was launched" if source == "run" else f"{source}: {self.entry.path}"
            title, note = (
                f"{'Launch again' if source == 'run' else 'Edit'}: {name}",
                "changed" if self.is_changed else origin,
            )
        self.query_one(TitleBar).show(title, plain_line(note))

    # --- the plan -----------------------------------------------------------------------------------------------------

    @work(exclusive=True, group="plan", exit_on_error=False)
    async def _plan(self) -> None:
        await asyncio.sleep(PLAN_SECONDS)
        self._read_lines()
        if await self._read_script(self._values):
            await self._build()
        profile = self._check()
        pane = self.query_one("#plan", TextPane)
        if self._chosen_line == RECIPE:
            await self._show_recipes(profile)
            return
        if profile is None:
            pane.show_title("Plan before the last change")
            return
        if self._chosen_line == BACKEND:
            await self._show_backends(profile)
            return
        try:
            plan = await off_loop(self.engine.preview, profile)
        except RankdeckError as error:
            if not self._show_problem(error):
                pane.show_text(partial(error_text, error), title="Plan")
        else:
            pane.show_text(partial(plan_text, plan, ascii=self.deck.ascii), title="Plan")
            self._show_warnings(plan.warnings)

    async def _show_recipes(self, profile: Profile | None) -> None:
        """Shows all choices in place of the plan; and at the line, why the chosen one can't run with the values of the form."""
        pane = self.query_one("#plan", TextPane)
        pane.show_text(
            partial(recipes_text, own_script(self._recipes, ()), self._recipe, ascii=self.deck.ascii), title="Recipes"
        )
        pane.scroll_home(animate=False)
        try:
            if profile is not None:
                await off_loop(self.engine.preview, profile)
        except RankdeckError as error:
            self._show_problem(error, RECIPE)

    @property
    def _chosen_line(self) -> str:
        """The line with the cursor, if the pane shows its choices; else empty."""
        row = self.focused.parent if self.focused is not None else None
        return row.field.id if isinstance(row, FormRow) and row.field.id in (BACKEND, RECIPE) else ""

    async def _show_backends(self, profile: Profile) -> None:
        """What could be chosen, in place of the plan."""
        pane = self.query_one("#plan", TextPane)
        try:
            self._available = await off_loop(self.engine.available, profile)
        except RankdeckError as error:
            if not self._show_problem(error):
                pane.show_text(partial(error_text, error), title="Backends")
            return
        pane.show_text(
            partial(backends_text, self._available, profile.backend.name, ascii=self.deck.ascii), title="Backends"
        )
        self._show_hint()

    def _check(self) -> Profile | None:
        """The profile in the form; None if it is not valid, with the reasons at their lines."""
        self._read_lines()
        for row in self.query(FormRow):
            row.show_problem("")
        errors = errors_of(self._values, self._base, self._recipes)
        for error in errors:
            if not self._show_problem(error):
                self.query_one("#plan", TextPane).show_text(partial(error_text, error), title="Plan")
        return None if errors else profile_of(self._values, self._base, self._recipes)

    def _show_problem(self, error: RankdeckError, default: str = "") -> bool:
        """Puts an error at its line, or at line `default`. False: the form has no such line."""
        rows = {row.field.id: row for row in self.query(FormRow)}
        key = line_of_error(error, list(rows)) if isinstance(error, ProfileError) else None
        row = rows.get(key or default)
        if row is None:
            return False
        reason = error.reason if isinstance(error, ProfileError) else error.message
        row.show_problem(plain_line(f"{reason}; {error.hint}" if error.hint else reason))
        return True

    def _show_warnings(self, warnings: Sequence[EnvWarning]) -> None:
        """Puts warnings below the variables that they are about."""
        for row in self.query(FormRow):
            own = [warning for warning in warnings if warning.table == row.field.id]
            row.show_warning("\n".join(plain_line(f"{one.name} {one.problem}; {one.hint}") for one in own))

    def checked(self) -> Profile | None:
        """The profile to launch or save; without one, the cursor goes to the first wrong line."""
        profile = self._check()
        wrong = [row for row in self.query(FormRow) if row.has_class("-wrong")]
        if profile is None and wrong:
            # Now, unlike `Widget.focus`, which would undo what the next key does.
            self.set_focus(wrong[0].line)
            count = "this line is" if len(wrong) == 1 else f"{len(wrong)} lines are"
            self.say(f"{count} not valid", error=True)
        return profile

    def was_saved(self, profile: Profile) -> None:
        self._base = profile
        self._saved = dict(self._values)
        self._show_title()

    # --- keys ---------------------------------------------------------------------------------------------------------

    def action_plan(self) -> None:
        self.toggle_class("-plan-only")

    @property
    def _recipe(self) -> str:
        """The name of the recipe in the form; empty: another program."""
        name = self._values.get(RECIPE)
        return next((one.name for one in self._recipes if one.name == name != OWN_SCRIPT), "")

    @work(group="script", exclusive=True, exit_on_error=False)
    async def action_script(self) -> None:
        """Shows the script of the recipe."""
        if recipe := self._recipe:
            self.app.push_screen(ScriptScreen(recipe, await off_loop(self.engine.script, recipe)))
        else:
            self.say("only the script of a recipe is shown", error=True)

    @work(group="take", exclusive=True, exit_on_error=False)
    async def take(self, values: Mapping[str, str], cursor: str) -> None:
        self._read_lines()
        self._values |= values
        await self._build()
        for row in self.query(FormRow):
            value = values.get(row.field.id, row.line.value)
            if isinstance(row.line, Input):
                row.line.value = value
            else:
                row.line.choose(value)
            if row.field.id == cursor:
                row.line.focus()
        self._show_title()
        self._plan()

    def action_launch(self) -> None:
        """Launches the profile in the form. The form stays open."""
        if (profile := self.checked()) is not None:
            self.deck.launch(profile)

    def action_back(self) -> None:
        if self.has_class("-plan-only"):
            self.remove_class("-plan-only")
        elif self.is_changed:
            self.app.push_screen(LeaveScreen(), self._leave)
        else:
            self.dismiss()

    def _leave(self, answer: bool | None) -> None:
        if answer is None:
            self.action_save(leave=True)
        elif answer:
            self.dismiss()
