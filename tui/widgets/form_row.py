"""A form, and one line of it: a label, the value typed or chosen, and below it the problems with the value."""

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.suggester import Suggester
from textual.widgets import Input, Label, Static

from tui.data.form_lines import Field
from tui.text.marks import to_ascii
from tui.widgets.choice import Choice
from tui.widgets.command_line import CommandLine


class FormRow(Horizontal):
    """A line of a form. Its widget is `line`. `takes_commands`: a pasted launch command is a message, not text."""

    def __init__(
        self, field: Field, value: str, *, ascii: bool, suggester: Suggester | None = None, takes_commands: bool = False
    ) -> None:
        super().__init__(classes="-group" if field.begins_group else None)
        self.field = field
        self._label = to_ascii(field.label) if ascii else field.label
        self.line: Input | Choice
        if field.choices:
            self.line = Choice([option for option, _ in field.choices], value, ascii=ascii)
        else:
            placeholder = f"({field.placeholder})" if field.placeholder else ""  # no value, with and without colours
            line = CommandLine if takes_commands else Input
            self.line = line(value, placeholder=placeholder, compact=True, select_on_focus=False, suggester=suggester)
            self.line.cursor_blink = False
        self._problem = Static(classes="problem", markup=False)
        self._warning = Static(classes="warning", markup=False)

    def compose(self) -> ComposeResult:
        yield Label(self._label, markup=False)
        yield self.line
        yield self._problem
        yield self._warning

    def on_resize(self) -> None:
        """Lets the form keep its line with the cursor in sight: an error that has appeared may have moved it."""
        if isinstance(self.parent, Form):
            self.parent.show_whole()

    def show_problem(self, text: str) -> None:
        self.set_class(bool(text), "-wrong")
        self._problem.update(text)

    def show_warning(self, text: str) -> None:
        """Shows warnings about values that may not do what was meant, one in each line; empty: none."""
        self.set_class(bool(text), "-warned")
        self._warning.update(text)


class Form(VerticalScroll, can_focus=False, inherit_bindings=False):
    """The lines. Keeps the line with the cursor in view, with the texts below it; arrow keys go from line to line."""

    def show_whole(self) -> None:
        """Scrolls the line with the cursor into view, with its error and warning."""
        focused = self.screen.focused
        if focused is not None and isinstance(row := focused.parent, FormRow):
            # At once: a scroll that waits for the next refresh is computed for a size that may be gone by then.
            self.scroll_to_widget(row, animate=False, immediate=True)

    def on_resize(self) -> None:
        """Less room may hide the line with the cursor."""
        self.show_whole()
