"""A pane with a text that is made for its width, and scrolls."""

from collections.abc import Callable

from textual import events
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from tui.keys import bindings
from tui.text.cells import cut
from tui.widgets.line_keys import LineKeys

BORDER = 6  # cells of the upper border that a title can't use


def fitted_title(widget: Widget, text: str, *, ascii: bool) -> Content:
    """A title cut to the width of a border. Textual cuts it with a character that is not ASCII."""
    return Content(cut(text, max(0, widget.outer_size.width - BORDER), ascii=ascii))


class TextPane(LineKeys, VerticalScroll, can_focus=True, inherit_bindings=False):
    """Shows the text that a function makes for a width; another width calls it again."""

    BINDINGS = bindings("list")

    def __init__(self, *, id: str, ascii: bool = False, focus: bool = True) -> None:
        """`focus`: whether the pane takes the keys."""
        super().__init__(id=id, classes="pane", can_focus=focus)
        self._ascii = ascii
        self._title: str | None = None
        self._source: Callable[[int], Content] = lambda width: Content("")
        self._text = Static(markup=False)

    def on_mount(self) -> None:
        self.mount(self._text)

    def show_text(self, source: Callable[[int], Content], *, title: str | None = None) -> None:
        """Shows another text, which `source` makes for a width in cells; `title`: another one for the border."""
        self._source = source
        if title is not None:
            self._title = title
        self._draw()

    def show_title(self, title: str) -> None:
        self._title = title
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def _move(self, lines: int) -> None:
        self.scroll_relative(y=lines, animate=False)

    def action_first(self) -> None:
        self.scroll_home(animate=False)

    def action_last(self) -> None:
        self.scroll_end(animate=False)

    def _draw(self) -> None:
        width = self.scrollable_content_region.width
        if width > 0:
            self._text.update(self._source(width))
            if self._title is not None:
                self.border_title = fitted_title(self, self._title, ascii=self._ascii)
