"""Common parts of the panes that scroll: the keys that move by lines and pages, and messages of a cursor."""

from typing import cast

from textual.message import Message
from textual.scroll_view import ScrollView
from textual.widget import Widget

ALL = 1 << 30  # more lines than there are

RANK_CELLS = {f"ranks--{state}" for state in ("starting", "exited", "failed", "lost", "stopped")}
"""The component classes of ranks, each for the colours of a state."""


class CursorMoved(Message):
    def can_replace(self, message: Message) -> bool:
        """Only the newest place of the cursor matters."""
        return isinstance(message, CursorMoved)


class CursorChosen(Message):
    """A click on the line or cell under the cursor."""


class LineKeys:
    """The actions of the keys in `tui.keys` whose place is `list`, for a widget that says how it moves."""

    HEADINGS = 0  # lines above the others that do not scroll

    def _move(self, lines: int) -> None:
        """Moves down, or up where `lines` is negative, as far as possible."""
        raise NotImplementedError

    @property
    def _page(self) -> int:
        """Lines of a page; half a page is half the height."""
        return max(1, cast("Widget", self).size.height - 1 - self.HEADINGS)

    @property
    def _half_page(self) -> int:
        return max(1, cast("Widget", self).size.height // 2)

    def action_cursor_up(self) -> None:
        self._move(-1)

    def action_cursor_down(self) -> None:
        self._move(1)

    def action_page_up(self) -> None:
        self._move(-self._page)

    def action_page_down(self) -> None:
        self._move(self._page)

    def action_half_page_up(self) -> None:
        self._move(-self._half_page)

    def action_half_page_down(self) -> None:
        self._move(self._half_page)

    def action_first(self) -> None:
        self._move(-ALL)

    def action_last(self) -> None:
        self._move(ALL)


def line_width(view: ScrollView) -> int:
    """Cells of a line, beside the scrollbar."""
    return max(0, view.size.width - view.scrollbar_size_vertical)


def show_line(view: ScrollView, y: int, headings: int) -> None:
    """Brings a line into view. `headings`: lines above the others that do not scroll."""
    top, height = view.scroll_offset.y, max(1, view.size.height - headings)
    if y < top or y >= top + height:
        view.scroll_to(y=y if y < top else y - height + 1, animate=False)
