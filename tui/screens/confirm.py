"""Questions and notices. Actions that end something ask here first; the default answer does nothing."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from engine.core.errors import RankdeckError
from tui.keys import bindings
from tui.text.cells import clean
from tui.widgets.key_bar import KeyBar

Answer = bool | None  # True: do it. False: do nothing. None: the third answer, where there is one.


class ConfirmScreen(ModalScreen[Answer]):
    """Asks before something is done that can't be undone. `question`: names the target: `Stop run gpt-2nodes?`. `detail`: what happens
    then, exactly."""

    BINDINGS = bindings("confirm")
    AUTO_FOCUS = "#no"
    ANSWERS: ClassVar[dict[str, Answer]] = {"no": False, "yes": True}

    def __init__(self, question: str, detail: str, *, do: str, dont: str = "Cancel") -> None:
        super().__init__()
        self._question, self._detail = question, detail
        self._buttons = {"no": f"{dont} (n)", "yes": f"{do} (y)"}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(clean(self._question), markup=False, classes="question")
            yield Static(clean(self._detail), markup=False, classes="detail")
            with Horizontal(classes="buttons"):
                for id, label in self._buttons.items():
                    yield Button(label, id=id, compact=True)
        yield KeyBar()

    def show(self, question: str, detail: str) -> None:
        """Asks with other words, because something has changed meanwhile."""
        if (question, detail) != (self._question, self._detail):
            self._question, self._detail = question, detail
            if self.is_mounted:
                self.query_one(".question", Static).update(clean(question))
                self.query_one(".detail", Static).update(clean(detail))

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(self.ANSWERS[event.button.id or "no"])

    def action_answer(self, answer: Answer) -> None:
        self.dismiss(answer)

    def action_move(self, direction: int) -> None:
        (self.focus_next if direction > 0 else self.focus_previous)("Button")


class LeaveScreen(ConfirmScreen):
    """Asks before a form with changes is left. None: save, then leave."""

    BINDINGS = bindings("leave")
    ANSWERS: ClassVar[dict[str, Answer]] = {**ConfirmScreen.ANSWERS, "save": None}

    def __init__(self) -> None:
        super().__init__("Leave without saving?", "Your changes are lost.", do="Leave", dont="Stay")
        self._buttons["save"] = "Save and leave (s)"


class NoticeScreen(ModalScreen[None]):
    """Shows an error that must be read: the fact and the next step."""

    BINDINGS = bindings("notice")

    def __init__(self, title: str, error: RankdeckError) -> None:
        super().__init__()
        self._title, self._error = title, error

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(clean(self._title), markup=False, classes="question")
            yield Static(clean(self._error.message), markup=False, classes="detail error")
            if self._error.hint:
                yield Static(clean(self._error.hint), markup=False, classes="detail")
            with Horizontal(classes="buttons"):
                yield Button("OK", compact=True)
        yield KeyBar()

    def on_button_pressed(self) -> None:
        self.dismiss()

    def action_close(self) -> None:
        self.dismiss()


class AskScreen(ModalScreen[str | None]):
    """Asks for one line of text, which begins as `value`; `detail` says what happens with it. `empty`: it may be empty."""

    BINDINGS = bindings("ask")
    LINE: ClassVar[type[Input]] = Input

    def __init__(self, question: str, value: str, detail: str, *, empty: bool = False) -> None:
        super().__init__()
        self._may_be_empty = empty
        self._question, self._value, self._detail = question, value, detail

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(clean(self._question), markup=False, classes="question")
            line = self.LINE(self._value, compact=True, select_on_focus=False)
            line.cursor_blink = False
            yield line
            yield Static(clean(self._detail), markup=False, classes="detail")
        yield KeyBar()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        self.dismiss(text if text or self._may_be_empty else None)

    def action_close(self) -> None:
        self.dismiss(None)
