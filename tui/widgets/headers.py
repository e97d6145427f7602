"""The first lines of a screen: a title, or how a run is."""

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from tui.data.model import Header
from tui.text.cells import cut
from tui.text.marks import to_ascii
from tui.text.run import header_lines


class TitleBar(Widget):
    """Two pieces of plain text in one line; the left one has precedence."""

    def __init__(self, title: str, note: str = "", *, ascii: bool) -> None:
        super().__init__()
        self._ascii = ascii
        self._title = title
        self._note = note

    def show(self, title: str, note: str) -> None:
        if (title, note) != (self._title, self._note):
            self._title, self._note = title, note
            self.refresh()

    def render(self) -> Content:
        width = self.content_size.width
        title = cut(self._title, width, ascii=self._ascii)
        room = width - cell_len(title) - 2
        note = to_ascii(self._note) if self._ascii else self._note
        note = note if cell_len(note) <= room else ""
        return Content.assemble((title, "bold $foreground"), " " * (width - cell_len(title) - cell_len(note)), note)


class RunHeader(Widget):
    def __init__(self, *, ascii: bool) -> None:
        super().__init__()
        self._ascii = ascii
        self._header: Header | None = None
        self._drawn = ""

    def show(self, header: Header | None) -> None:
        self._header = header
        text = str(self.render())
        if text != self._drawn:
            self._drawn = text
            self.refresh()

    def render(self) -> Content:
        width = self.content_size.width
        if self._header is None:
            return Content("connecting")
        return Content("\n").join(header_lines(self._header, width, ascii=self._ascii))
