"""A profile as a form, with its plan beside it: new, edit, duplicate."""

from functools import partial

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container
from textual.widgets import Input, Static

from engine.core.catalogue import ProfileEntry
from engine.core.plan.profile import Profile
from tui.data.form_lines import BACKEND, DECIDING, RECIPE
from tui.data.off_loop import off_loop
from tui.keys import bindings, first_key
from tui.screens.base import DeckScreen
from tui.screens.confirm import ConfirmScreen, LeaveScreen
from tui.screens.edit_form import EditForm, title_words
from tui.screens.edit_plan import EditPlan
from tui.screens.edit_saving import Saving
from tui.screens.script import ScriptScreen
from tui.text.cells import plain_line
from tui.widgets.choice import UNSET, Choice
from tui.widgets.command_line import CommandLine
from tui.widgets.form_row import Form, FormRow
from tui.widgets.headers import TitleBar
from tui.widgets.key_bar import KeyBar
from tui.widgets.text_pane import TextPane


class EditScreen(DeckScreen):
    BINDINGS = bindings("edit")
    gives_way = True

    def __init__(self, entry: ProfileEntry | None, *, duplicate: bool = False) -> None:
        super().__init__()
        is_new = entry is None or duplicate or entry.source == "command"
        is_here = entry is not None and duplicate and entry.source == "here"  # a duplicate stays beside its original
        folder = entry.path.parent if entry is not None and is_here else None
        base = entry.profile if entry is not None else None
        self._suffix = "-copy" if duplicate else ""
        self.form = EditForm(self, base, is_new=is_new, changed=self._changed)
        self._plan = EditPlan(self, self.form, entry, self._show_hint)
        self._saving = Saving(self, None if is_new else entry, folder, checked=self._checked, was_saved=self._was_saved)
        self.add_parts(self.form, self._saving)

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

    @work(exclusive=True, group="form", exit_on_error=False)
    async def on_mount(self) -> None:
        await self.form.fill(self._suffix)
        first = next(iter(self.form.rows), None)
        if first is not None and self.focused is None:
            first.line.focus()
        self._changed()

    @on(CommandLine.Pasted)
    def _command_pasted(self, message: CommandLine.Pasted) -> None:
        """Fills the form from a launch command; asks first if something would be lost."""
        fill = partial(self.deck.open_command, message.text)
        if self.form.is_changed:
            detail = "A form of the pasted command takes the place of this one. Your changes are lost."
            self.ask(ConfirmScreen("Fill the form again?", detail, do="Fill"), fill)
        else:
            fill()

    # --- typing -------------------------------------------------------------------------------------------------------

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        if isinstance(event.input.parent, FormRow) and event.input.is_attached:
            self.form.values[event.input.parent.field.id] = event.value
            self._changed()

    @on(Choice.Changed)
    async def _chosen(self, event: Choice.Changed) -> None:
        if isinstance(row := event.choice.parent, FormRow):
            self.form.values[row.field.id] = event.choice.value
            self._changed()
            if row.field.id in DECIDING:
                await self.form.build()
            self._show_hint()

    def _changed(self) -> None:
        self._show_title()
        self._plan.make()

    @on(Input.Submitted)
    def _next_line(self) -> None:
        self.focus_next()

    def on_descendant_focus(self) -> None:
        """Explains the line with the cursor and shows all of it."""
        self._show_hint()
        self.call_after_refresh(self.query_one(Form).show_whole)
        self._plan.cursor_moved()

    def _show_hint(self) -> None:
        if (row := self.form.focused) is None:
            return
        field, keymap = row.field, self.deck.keymap
        value = self.form.values.get(field.id, "")
        meaning = dict(field.choices).get(value, "")
        if field.id == BACKEND:
            trouble = next((one.trouble for one in self._plan.available if one.name == value), "")
            meaning = f"can't run: {trouble}" if trouble else meaning
        told = field.help if field.help.endswith(".") else f"{field.help};"
        text = f"{told} {value or UNSET}: {meaning}" if meaning else field.help
        if field.choices:
            before, after, read = (first_key(id, keymap) for id in ("choice.previous", "choice.next", "edit.script"))
            script = f"; {read}: its script" if field.id == RECIPE and self.form.recipe else ""
            text += f" ({before}, {after}: another{script})"
        if field.path == "script":
            text += f" ({first_key('edit.choose_script', keymap)}: choose one)"
        text += " (right: take what is offered)" if field.path else ""
        self.query_one("#hint", Static).update(plain_line(text))

    def _show_title(self) -> None:
        name = plain_line(self.form.values.get("name", "")) or "new run"
        title, note = title_words(self._saving.entry, name, is_changed=self.form.is_changed)
        self.query_one(TitleBar).show(title, plain_line(note))

    # --- keys ---------------------------------------------------------------------------------------------------------

    def _checked(self) -> Profile | None:
        """The profile to launch or save; without one, the cursor goes to the first wrong line."""
        profile = self.form.check(self._plan.show_error)
        if profile is None:
            self.form.go_to_problem()
        return profile

    def _was_saved(self, profile: Profile) -> None:
        self.form.was_saved(profile)
        self._show_title()

    def action_plan(self) -> None:
        self.toggle_class("-plan-only")

    @work(group="script", exclusive=True, exit_on_error=False)
    async def action_script(self) -> None:
        if recipe := self.form.recipe:
            self.app.push_screen(ScriptScreen(recipe, await off_loop(self.engine.script, recipe)))
        else:
            self.say("only the script of a recipe is shown", error=True)

    def action_launch(self) -> None:
        """Launches the profile in the form. The form stays open."""
        if (profile := self._checked()) is not None:
            self.deck.launch(profile)

    def action_back(self) -> None:
        if self.has_class("-plan-only"):
            self.remove_class("-plan-only")
        elif self.form.is_changed:
            self.app.push_screen(LeaveScreen(), self._leave)
        else:
            self.dismiss()

    def _leave(self, answer: bool | None) -> None:
        if answer is None:
            self._saving.action_save(leave=True)
        elif answer:
            self.dismiss()
