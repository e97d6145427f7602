"""A choice of one among a few, all in one line: what could be chosen is seen without opening anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from tui.keys import bindings
from tui.text import plain_line


class Choice(Widget, can_focus=True):
    """Left and right choose. What does not fit is out of sight, the chosen one never."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("choice")]

    DEFAULT_CSS = """
    Choice { height: 1; width: 1fr; &:focus { background: $block-cursor-blurred-background; } }
    """

    class Changed(Message):
        """Another one was chosen."""

        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

        @property
        def control(self) -> Choice:
            """The widget."""
            return self.choice

    def __init__(self, options: Sequence[str], value: str, *, ascii: bool) -> None:  # noqa: A002
        """Args:
        options: what can be chosen.
        value: what is chosen; one that is no option is offered too, so that nothing changes unasked.
        ascii: draws with ASCII characters.
        """
        super().__init__()
        self.options = list(options) if value in options else [value, *options]
        self.value = value
        self._ascii = ascii

    def choose(self, value: str) -> None:
        """Chooses."""
        if value != self.value and value in self.options:
            self.value = value
            self.refresh()
            self.post_message(self.Changed(self))

    def action_choose(self, direction: int) -> None:
        """The next or the previous one, around the ends."""
        self.choose(self.options[(self.options.index(self.value) + direction) % len(self.options)])

    def render(self) -> Content:
        """Every option with its sign."""
        on, off = ("(*)", "( )") if self._ascii else ("●", "○")
        parts: list[tuple[str, str]] = []
        self._spans: list[tuple[int, int, str]] = []
        column = 0
        for option in self._shown():
            chosen = option == self.value
            text = f"{on if chosen else off} {plain_line(option)}"
            self._spans.append((column, column + cell_len(text), option))
            column += cell_len(text) + 2
            parts += [(text, "bold $text-accent" if chosen else "$foreground 70%"), ("  ", "")]
        return Content.assemble(*parts)

    def _shown(self) -> list[str]:
        """Options from the first that lets the chosen one be seen."""
        width, sign = self.content_size.width, 4 if self._ascii else 2
        for begin in range(self.options.index(self.value) + 1):
            upto = self.options[begin : self.options.index(self.value) + 1]
            if sum(cell_len(plain_line(option)) + sign + 2 for option in upto) - 2 <= width:
                return self.options[begin:]
        return [self.value]

    def on_click(self, event: events.Click) -> None:
        """Chooses what is under the pointer."""
        offset = event.get_content_offset(self)
        if offset is not None:
            for begin, end, option in self._spans:
                if begin <= offset.x < end:
                    self.choose(option)
