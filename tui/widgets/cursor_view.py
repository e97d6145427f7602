"""What the panes that scroll have in common: the keys that move by lines and pages, and a cursor that stays in view."""

from __future__ import annotations

from typing import ClassVar, cast

from textual.message import Message
from textual.scroll_view import ScrollView
from textual.widget import Widget

ALL = 1 << 30
"""More lines than there are."""


class LineKeys:
    """The actions of the keys in `tui.keys` whose place is `list`, for a widget that says how it moves."""

    def _move(self, lines: int) -> None:
        """Moves down, or up where `lines` is negative, as far as possible."""
        raise NotImplementedError

    @property
    def _page(self) -> int:
        """Lines of a page; half a page is half the height."""
        return max(1, cast("Widget", self).size.height - 1)

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


class CursorView(LineKeys, ScrollView, can_focus=True, inherit_bindings=False):
    """Lines that are drawn one by one, with a cursor. `ascii`: with ASCII characters only."""

    ALLOW_SELECT = False

    HEADINGS: ClassVar[int] = 0
    """Lines above the others that do not scroll."""

    DEFAULT_CSS = """
    CursorView {
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-size: 0 1;
        scrollbar-gutter: stable;
    }
    """

    class Moved(Message):
        """The cursor moved."""

        def can_replace(self, message: Message) -> bool:
            """Only the newest place of the cursor matters."""
            return isinstance(message, CursorView.Moved)

    class Selected(Message):
        """A click on the line or cell under the cursor."""

    def __init__(self, *, ascii: bool = False, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.ascii = ascii

    @property
    def _width(self) -> int:
        """Cells of a line, beside the scrollbar."""
        return max(0, self.size.width - self.scrollbar_size_vertical)

    def _scroll_to_line(self, y: int) -> None:
        """Brings a line into view."""
        top, height = self.scroll_offset.y, max(1, self.size.height - self.HEADINGS)
        if y < top or y >= top + height:
            self.scroll_to(y=y if y < top else y - height + 1, animate=False)


class RankCells(CursorView):
    """Ranks, each in the colours of its state."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "ranks--starting", "ranks--exited", "ranks--failed", "ranks--lost", "ranks--stopped",
    }  # fmt: skip

    DEFAULT_CSS = """
    RankCells {
        background: $surface;
        color: $foreground;

        & > .ranks--starting { color: $text-warning; }
        & > .ranks--exited { color: $text-success; }
        & > .ranks--failed { color: $text-error; background: $error 20%; text-style: bold; }
        & > .ranks--lost { color: $text-warning; background: $warning 15%; text-style: bold; }
        & > .ranks--stopped { color: $text-muted; }
    }
    """
