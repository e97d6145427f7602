"""The footer: the keys that do something now, in one line, the most useful first. Textual's `Footer` builds a widget for every key each
time the focus moves, and scrolls what does not fit; this one draws a line and leaves out whole entries."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.keys import key_to_character
from textual.screen import Screen
from textual.widget import Widget

from tui.keys import FOOTER_FIRST, KEYS, changes_something, key_name

_KEYS = {key.id: key for key in sorted(KEYS, key=lambda key: key.where == "app")}
"""The keys of the table by id, the most useful first."""


class Entry(NamedTuple):
    """A key as Textual names it and as it is shown, and its label."""

    key: str
    shown: str
    label: str
    pinned: bool

    @property
    def width(self) -> int:
        """Cells, with the space around."""
        return cell_len(self.shown) + cell_len(self.label) + 3


class KeyBar(Widget):
    """Keys and their actions. A click presses the key."""

    ALLOW_SELECT: ClassVar[bool] = False

    def on_mount(self) -> None:
        self._spans: list[tuple[int, int, str]] = []
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if screen is self.screen:
            self.refresh()

    def entries(self) -> list[Entry]:
        """The keys that do something now, the most useful first."""
        found: dict[str, Entry] = {}
        focused = self.screen.focused
        own_label: Callable[[str], str] | None = getattr(self.screen, "key_label", None)
        for key, active in self.screen.active_bindings.items():
            binding = active.binding
            known = _KEYS.get(binding.id or "")
            if known is None or known.id in found or not binding.show or not active.enabled:
                continue
            if getattr(self.app, "read_only", False) and changes_something(known.action):
                continue
            # While the user types, letters are text: another key of the same action is shown, or none.
            if focused is None or not focused.check_consume_key(key, key_to_character(key)):
                label = own_label(known.id) if own_label is not None else ""
                found[known.id] = Entry(key, key_name(key), label or binding.description, known.pinned)
        first = [
            id for place, ids in FOOTER_FIRST.items() if any(_KEYS[one].where == place for one in found) for id in ids
        ]
        return [found[id] for id in dict.fromkeys((*first, *_KEYS)) if id in found]

    def render(self) -> Content:
        """As many entries as fit. Pinned ones stay, at the end."""
        entries = self.entries()
        pinned = [entry for entry in entries if entry.pinned]
        room = self.content_size.width - sum(entry.width for entry in pinned)
        shown = []
        for entry in entries:
            if not entry.pinned:
                room -= entry.width
                if room < 0:
                    break
                shown.append(entry)
        parts: list[tuple[str, str]] = []
        self._spans = []
        column = 0
        for entry in (*shown, *pinned):
            self._spans.append((column, column + entry.width, entry.key))
            column += entry.width
            parts += [
                (entry.shown, "bold $footer-key-foreground"),
                (f" {entry.label}  ", "$footer-description-foreground 80%"),
            ]
        return Content.assemble(*parts)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None:
            for begin, end, key in self._spans:
                if begin <= offset.x < end:
                    self.app.simulate_key(key)
