"""A choice of one among a few, in one line: all options are seen without opening anything."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from tui.keys import bindings
from tui.text.cells import plain_line
from tui.text.marks import MUTED

BEFORE = "< "
AFTER = " >"  # signs for options that do not fit, on the left and on the right

UNSET = "default"  # shown for the empty option, which leaves the choice to rankdeck or to another setting


class Choice(Widget, can_focus=True):
    """Left and right choose. Options that do not fit are hidden, with a sign on that side; the chosen option is always visible."""

    BINDINGS = bindings("choice")

    class Changed(Message):
        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

    def __init__(self, options: Sequence[str], value: str, *, ascii: bool) -> None:
        """A value that is no option is offered too, so that nothing changes unasked."""
        super().__init__()
        self.options = list(options) if value in options else [value, *options]
        self.value = value
        self._ascii = ascii

    def choose(self, value: str) -> None:
        if value != self.value and value in self.options:
            self.value = value
            self.refresh()
            self.post_message(self.Changed(self))

    def action_choose(self, direction: int) -> None:
        """The next or the previous choice; after the last comes the first."""
        self.choose(self.options[(self.options.index(self.value) + direction) % len(self.options)])

    def render(self) -> Content:
        on, off = ("(*)", "( )") if self._ascii else ("●", "○")
        begin, end = self._window()
        parts: list[tuple[str, str]] = [(BEFORE, MUTED)] if begin > 0 else []
        self._spans: list[tuple[int, int, str]] = []
        column = len(BEFORE) if begin > 0 else 0
        for option in self.options[begin:end]:
            chosen = option == self.value
            text = f"{on if chosen else off} {plain_line(option) or UNSET}"
            self._spans.append((column, column + cell_len(text), option))
            column += cell_len(text) + 2
            parts += [(text, "bold $text-accent" if chosen else "$foreground 70%"), ("  ", "")]
        if end < len(self.options):
            parts[-1] = (AFTER, MUTED)
        return Content.assemble(*parts)

    def _window(self) -> tuple[int, int]:
        """The shown options: as many as there is room for, with the chosen one among them."""
        width, sign, count = self.content_size.width, 4 if self._ascii else 2, len(self.options)
        cells = [cell_len(plain_line(option) or UNSET) + sign for option in self.options]

        def fits(begin: int, end: int) -> bool:
            signs = (len(BEFORE) if begin > 0 else 0) + (len(AFTER) if end < count else 0)
            return sum(cells[begin:end]) + 2 * (end - begin - 1) + signs <= width

        chosen = self.options.index(self.value)
        begin = next((begin for begin in range(chosen) if fits(begin, chosen + 1)), chosen)
        end = next((end for end in range(count, chosen + 1, -1) if fits(begin, end)), chosen + 1)
        return begin, end

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None:
            for begin, end, option in self._spans:
                if begin <= offset.x < end:
                    self.choose(option)
