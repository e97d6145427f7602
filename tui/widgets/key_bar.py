"""The footer: the keys that do something now, in one line, the most useful first.

Textual's `Footer` builds a widget for every key each time the focus moves, and scrolls what does not fit out of sight; this
one draws a line and leaves out whole entries from the end.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.keys import key_to_character
from textual.screen import Screen
from textual.widget import Widget

from tui.keys import KEYS, key_name

_ORDER = {key.id: index for index, key in enumerate(KEYS) if key.where != "everywhere"}


@runtime_checkable
class HasKeyLabels(Protocol):
    """A screen on which what a key does depends on what is shown."""

    def key_label(self, key: str, label: str) -> str:
        """What the footer says of a key."""
        ...


class KeyBar(Widget):
    """Keys and what they do. A click presses the key."""

    ALLOW_SELECT: ClassVar[bool] = False

    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; padding: 0 1; background: $footer-background; color: $text-muted; }
    """

    def on_mount(self) -> None:
        """Draws anew when other keys become valid."""
        self._spans: list[tuple[int, int, str]] = []
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if screen is self.screen:
            self.refresh()

    def entries(self) -> list[tuple[str, str, str]]:
        """(key as Textual names it, key as it is shown, label) of what is valid now, most useful first."""
        found: dict[str, tuple[int, str, str, str]] = {}
        typing_into = self.screen.focused
        for key, active in self.screen.active_bindings.items():
            binding = active.binding
            if not binding.show or not active.enabled or binding.id is None or binding.id in found:
                continue
            # While the user types, letters are text: another key of the same act is shown, or none.
            if typing_into is None or not typing_into.check_consume_key(key, key_to_character(key)):
                label = self._label(binding.id, binding.description)
                found[binding.id] = (_ORDER.get(binding.id, len(KEYS)), key, key_name(key), label)
        return [(key, shown, label) for _, key, shown, label in sorted(found.values(), key=lambda entry: entry[0])]

    def _label(self, key: str, label: str) -> str:
        screen = self.screen
        return screen.key_label(key, label) if isinstance(screen, HasKeyLabels) else label

    def render(self) -> Content:
        """As many entries as fit; how to leave and where the help is are always among them."""
        entries = self.entries()
        last = [entry for entry in entries if entry[1] in ("q", "?", "F1")]
        room = self.content_size.width - sum(_width(entry) for entry in last)
        shown = []
        for entry in entries:
            if entry in last:
                continue
            room -= _width(entry)
            if room < 0:
                break
            shown.append(entry)
        parts: list[tuple[str, str]] = []
        self._spans = []
        column = 0
        for key, name, label in (*shown, *last):
            self._spans.append((column, column + _width((key, name, label)), key))
            column += _width((key, name, label))
            parts += [(name, "bold $footer-key-foreground"), (f" {label}  ", "$footer-description-foreground 80%")]
        return Content.assemble(*parts)

    def on_click(self, event: events.Click) -> None:
        """Presses the key under the pointer."""
        offset = event.get_content_offset(self)
        if offset is not None:
            for begin, end, key in self._spans:
                if begin <= offset.x < end:
                    self.app.simulate_key(key)


def _width(entry: tuple[str, str, str]) -> int:
    return cell_len(entry[1]) + cell_len(entry[2]) + 3
