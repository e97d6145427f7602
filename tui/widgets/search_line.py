"""A line for typing words: a pane searches for them, or shows only lines that have them."""

from collections.abc import Callable

from textual.widgets import Input


class SearchLine(Input):
    """Hidden until it is opened; esc closes it. `changed` gets every text that is typed, `done` the one that enter confirms."""

    def __init__(
        self, id: str, placeholder: str, *, changed: Callable[[str], object], done: Callable[[str], object]
    ) -> None:
        super().__init__(compact=True, placeholder=placeholder, id=id)
        self.cursor_blink = False
        self.display = False
        self._told, self._done = changed, done

    def on_input_changed(self) -> None:
        self._told(self.value)

    def on_input_submitted(self) -> None:
        self._done(self.value)

    def open(self) -> None:
        """Shows the line; the next key goes into it."""
        self.display = True
        self.screen.set_focus(self)

    def close(self) -> None:
        """Hides the line and forgets the typed text."""
        self.display = False
        self.value = ""
