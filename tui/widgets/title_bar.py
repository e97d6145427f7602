"""The first line of a screen: what it is on the left, what is around it on the right."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from tui.text.cells import cut
from tui.text.marks import to_ascii


class TitleBar(Widget):
    """Two pieces of plain text in one line; the left one has precedence."""

    DEFAULT_CSS = """
    TitleBar { height: 1; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, title: str, note: str = "", *, ascii: bool) -> None:
        super().__init__()
        self._ascii = ascii
        self._title = title
        self._note = note

    def show(self, title: str, note: str) -> None:
        """Shows other text."""
        if (title, note) != (self._title, self._note):
            self._title, self._note = title, note
            self.refresh()

    def render(self) -> Content:
        """The title, and the note at the right end where there is room for it."""
        width = self.content_size.width
        title = cut(self._title, width, ascii=self._ascii)
        room = width - cell_len(title) - 2
        note = to_ascii(self._note) if self._ascii else self._note
        note = note if cell_len(note) <= room else ""
        return Content.assemble((title, "bold $foreground"), " " * (width - cell_len(title) - cell_len(note)), note)
