"""A list of lines whose cursor keeps its place while the lines change."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tui.keys import bindings
from tui.widgets.line_keys import LineKeys

PAGE = 200  # lines that are made at first, and again when the cursor gets to the last one: ten thousand take seconds


class LineList(LineKeys, OptionList, inherit_bindings=False):
    """Entries by id. A subclass binds a key to `OPEN`, the action on the entry under the cursor."""

    BINDINGS = bindings("list")
    OPEN: ClassVar[str]

    def __init__(self, *, id: str, empty: str) -> None:
        """`empty` is shown while there is no entry."""
        self._ids: Sequence[str] = ()
        self._made: Callable[[int], Sequence[Content]] = lambda most: ()
        self._most = PAGE
        self._entries: list[tuple[str, Content]] = []
        self._empty = empty
        super().__init__(Option(Content(empty), disabled=True), id=id, markup=False)  # it goes to the first line

    @property
    def chosen(self) -> str | None:
        option = self.highlighted_option
        return option.id if option is not None else None

    def say_when_empty(self, text: str) -> None:
        if text != self._empty:
            self._empty = text
            if not self._entries:
                self.set_options([Option(Content(text), disabled=True)])

    def set_entries(self, keys: Sequence[str], lines: Callable[[int], Sequence[Content]]) -> None:
        """Shows other entries. The cursor stays on its id, or else near its place.

        Args:
            keys: ids of all entries.
            lines: returns at least the first lines of this number.
        """
        self._ids, self._made = keys, lines
        self._make_lines()

    def _make_lines(self) -> None:
        entries = list(zip(self._ids[: self._most], self._made(self._most), strict=False))
        if not entries and not self._entries:
            return
        if [key for key, _ in entries] == [key for key, _ in self._entries]:
            for index, ((_, old), (_, new)) in enumerate(zip(self._entries, entries, strict=True)):
                if old != new or old.spans != new.spans:
                    self.replace_option_prompt_at_index(index, new)
            self._entries = entries
            return
        before, place = self.chosen, self.highlighted or 0
        self._entries = entries
        if not entries:
            self.set_options([Option(Content(self._empty), disabled=True)])
            return
        self.set_options([Option(content, id=key) for key, content in entries])
        self.choose(before, place)

    def on_resize(self) -> None:
        """Keeps the cursor visible: a list that becomes lower may hide it."""
        self.scroll_to_highlight()

    def _move(self, lines: int) -> None:
        if self._entries:
            to = (self.highlighted or 0) + lines
            if to >= len(self._entries) - 1 and len(self._entries) < len(self._ids):
                self._most = min(to, len(self._ids)) + PAGE
                self._make_lines()
            elif to < PAGE:
                self._most = PAGE
            self.highlighted = max(0, min(len(self._entries) - 1, to))

    async def on_click(self, event: events.Click) -> None:
        """A double click opens the entry."""
        if event.chain == 2 and self.chosen is not None and event.style.meta.get("option") == self.highlighted:
            await self.run_action(self.OPEN)

    def choose(self, key: str | None, otherwise: int = 0) -> None:
        """Puts the cursor on an id, or on an index if there is no such id."""
        if key in self._ids[self._most :]:
            self._most = self._ids.index(key) + PAGE
            self._make_lines()
        keys = [known for known, _ in self._entries]
        if keys:
            self.highlighted = keys.index(key) if key in keys else min(otherwise, len(keys) - 1)
