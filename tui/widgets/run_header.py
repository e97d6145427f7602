"""The two lines above the rank table, drawn anew only where their text changes."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

from tui.data.model import Header
from tui.text.run import header_lines


class RunHeader(Widget):
    """How the run is, at a glance."""

    DEFAULT_CSS = """
    RunHeader { height: 2; padding: 0 1; }
    """

    def __init__(self, *, ascii: bool) -> None:
        super().__init__()
        self._ascii = ascii
        self._header: Header | None = None
        self._drawn = ""

    def show(self, header: Header | None) -> None:
        """Shows other values; paints if that is seen."""
        self._header = header
        text = str(self.render())
        if text != self._drawn:
            self._drawn = text
            self.refresh()

    def render(self) -> Content:
        """Both lines."""
        width = self.content_size.width
        if self._header is None:
            return Content("connecting")
        return Content("\n").join(header_lines(self._header, width, ascii=self._ascii))
