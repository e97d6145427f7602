"""Questions and notices. What ends something asks here first; the answer that does nothing is the default."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from engine.core.errors import RankdeckError
from tui.keys import bindings
from tui.text.cells import clean


class ConfirmScreen(ModalScreen[bool]):
    """Asks before something is done that can't be undone.

    Args:
        question: names the target: `Stop run gpt-2nodes?`
        detail: what happens then, exactly.
        do: the word on the button that does it.
        dont: the word on the button that does nothing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("confirm")]
    AUTO_FOCUS = "#no"

    def __init__(self, question: str, detail: str, *, do: str, dont: str = "Cancel") -> None:
        super().__init__()
        self._question, self._detail, self._do, self._dont = question, detail, do, dont

    def compose(self) -> ComposeResult:
        """A question, its consequences, two buttons."""
        with Vertical(classes="dialog"):
            yield Static(clean(self._question), markup=False, classes="question")
            yield Static(clean(self._detail), markup=False, classes="detail")
            with Horizontal(classes="buttons"):
                yield Button(f"{self._dont} (n)", id="no", compact=True)
                yield Button(f"{self._do} (y)", id="yes", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answers."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """Answers."""
        self.dismiss(yes)

    def action_move(self, direction: int) -> None:
        """Goes to the other button."""
        _move(self, direction)


class LeaveScreen(ModalScreen[bool | None]):
    """Asks before a form with changes is left. True: leave; False: stay; None: save, then leave."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("leave"), *bindings("confirm")]
    AUTO_FOCUS = "#no"
    ANSWERS: ClassVar[dict[str, bool | None]] = {"no": False, "yes": True, "save": None}

    def compose(self) -> ComposeResult:
        """A question, its consequences, three buttons."""
        with Vertical(classes="dialog"):
            yield Static("Leave without saving?", markup=False, classes="question")
            yield Static("Your changes are lost.", markup=False, classes="detail")
            with Horizontal(classes="buttons"):
                yield Button("Stay (n)", id="no", compact=True)
                yield Button("Leave (y)", id="yes", compact=True)
                yield Button("Save and leave (s)", id="save", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answers."""
        self.dismiss(self.ANSWERS[event.button.id or "no"])

    def action_answer(self, yes: bool | None) -> None:
        """Answers."""
        self.dismiss(yes)

    def action_move(self, direction: int) -> None:
        """Goes to another button."""
        _move(self, direction)


def _move(screen: ModalScreen[Any], direction: int) -> None:
    (screen.focus_next if direction > 0 else screen.focus_previous)("Button")


class NoticeScreen(ModalScreen[None]):
    """Shows an error that must be read: the fact, and the next step."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("notice")]

    def __init__(self, title: str, error: RankdeckError) -> None:
        super().__init__()
        self._title, self._error = title, error

    def compose(self) -> ComposeResult:
        """The error and one button."""
        with Vertical(classes="dialog"):
            yield Static(clean(self._title), markup=False, classes="question")
            yield Static(clean(self._error.message), markup=False, classes="detail error")
            if self._error.hint:
                yield Static(clean(self._error.hint), markup=False, classes="detail")
            with Horizontal(classes="buttons"):
                yield Button("OK", compact=True)

    def on_button_pressed(self) -> None:
        """Goes back."""
        self.dismiss()

    def action_close(self) -> None:
        """Goes back."""
        self.dismiss()


class AskScreen(ModalScreen[str | None]):
    """Asks for one line of text.

    Args:
        question: what is asked for.
        value: what stands there to begin with.
        detail: what happens with it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("ask")]

    def __init__(self, question: str, value: str, detail: str) -> None:
        super().__init__()
        self._question, self._value, self._detail = question, value, detail

    def compose(self) -> ComposeResult:
        """A question and a line to write on."""
        with Vertical(classes="dialog"):
            yield Static(clean(self._question), markup=False, classes="question")
            line = Input(self._value, compact=True, select_on_focus=False)
            line.cursor_blink = False
            yield line
            yield Static(clean(self._detail), markup=False, classes="detail")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answers."""
        self.dismiss(event.value.strip() or None)

    def action_close(self) -> None:
        """Leaves without an answer."""
        self.dismiss(None)
