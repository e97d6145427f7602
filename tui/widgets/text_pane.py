"""A pane of text that scrolls, made for the width that the pane has."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from tui.keys import bindings
from tui.text.cells import cell_fit

BORDER = 6
"""Cells of a border's line that no title gets: corners, and what is kept free beside them."""


def fitted_title(widget: Widget, text: str, *, ascii: bool) -> Content:  # noqa: A002  the command line's word
    """A title in the cells that a border has for it. Textual would cut it with a character that is not ASCII."""
    return Content(cell_fit(text, min(cell_len(text), max(0, widget.outer_size.width - BORDER)), ascii=ascii))


class TextPane(VerticalScroll, can_focus=True, inherit_bindings=False):
    """Shows what a function makes of a width, and asks it again when the width changes."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]

    DEFAULT_CSS = """
    TextPane { padding: 0 1; scrollbar-size: 0 1; scrollbar-gutter: stable; }
    TextPane > Static { width: 1fr; }
    """

    def __init__(self, *, id: str, ascii: bool = False, focus: bool = True) -> None:  # noqa: A002  Textual's word
        """Args:
        id: of the widget.
        ascii: draws with ASCII characters.
        focus: whether the keys can go to it.
        """
        super().__init__(id=id, classes="pane", can_focus=focus)
        self._ascii = ascii
        self._title: str | None = None
        self._source: Callable[[int], Content] = lambda width: Content("")
        self._text = Static(markup=False)

    def on_mount(self) -> None:
        """Puts the text into the pane."""
        self.mount(self._text)

    def show_text(self, source: Callable[[int], Content], *, title: str | None = None) -> None:
        """Shows another text.

        Args:
            source: makes the text for a width in cells.
            title: for the border; left out, it stays.
        """
        self._source = source
        if title is not None:
            self._title = title
        self._draw()

    def show_title(self, title: str) -> None:
        """Shows another title above the same text."""
        self._title = title
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Makes the text for the new width."""
        self._draw()

    def action_cursor_up(self) -> None:
        """One line up."""
        self.scroll_up(animate=False)

    def action_cursor_down(self) -> None:
        """One line down."""
        self.scroll_down(animate=False)

    def action_page_up(self) -> None:
        """One page up."""
        self.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        """One page down."""
        self.scroll_page_down(animate=False)

    def action_half_page_up(self) -> None:
        """Half a page up."""
        self.scroll_relative(y=-max(1, self.size.height // 2), animate=False)

    def action_half_page_down(self) -> None:
        """Half a page down."""
        self.scroll_relative(y=max(1, self.size.height // 2), animate=False)

    def action_first(self) -> None:
        """To the beginning."""
        self.scroll_home(animate=False)

    def action_last(self) -> None:
        """To the end."""
        self.scroll_end(animate=False)

    def _draw(self) -> None:
        width = self.scrollable_content_region.width
        if width > 0:
            self._text.update(self._source(width))
            if self._title is not None:
                self.border_title = fitted_title(self, self._title, ascii=self._ascii)
