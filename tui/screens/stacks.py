"""Where every rank of a run is in its Python code."""

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from textual import work
from textual.app import ComposeResult
from textual.content import Content

from engine.core.errors import RankdeckError
from engine.core.numbers import TIME, clock
from tui.keys import bindings
from tui.screens.base import DeckScreen
from tui.text.cells import cut_run, plain_line
from tui.text.lines import error_text, wrapped
from tui.text.run import MAX_NAME, stacks_text
from tui.widgets.key_bar import KeyBar
from tui.widgets.text_pane import TextPane

WAITING = (
    "Asking every rank for its stack. A rank that hangs answers too; one that does not answer takes a few seconds."
)


class StacksScreen(DeckScreen):
    """One text that scrolls: the stacks, as lines for people, that `ask` returns, or its RankdeckError."""

    BINDINGS = bindings("stacks")
    AUTO_FOCUS = "#stacks"

    def __init__(self, run: str, ask: Callable[[], Coroutine[Any, Any, list[str]]]) -> None:
        super().__init__()
        self._run = run
        self._ask = ask
        self._waiting = False
        self._taken = ""  # the part of the title about the stacks that are shown

    def compose(self) -> ComposeResult:
        yield TextPane(id="stacks", ascii=self.deck.ascii)
        yield KeyBar()

    def on_mount(self) -> None:
        self._show(lambda width: Content("\n").join(wrapped(WAITING, width)))
        self._take()

    @work(group="request", exit_on_error=False)
    async def _take(self) -> None:
        if self._waiting:
            return
        self._set_waiting(True)
        try:
            lines = await self._ask()
        except RankdeckError as error:
            self.say(plain_line(error.message), error=True)
            if not self._taken:
                self._show(partial(error_text, error))
        else:
            self._taken = f", taken at {clock(time.time(), TIME, self.deck.units)}"
            self._show(partial(stacks_text, lines))
        finally:
            self._set_waiting(False)

    def _set_waiting(self, waiting: bool) -> None:
        self._waiting = waiting
        self.refresh_bindings()
        for pane in self.query(TextPane):
            pane.show_title(self._title())

    def _show(self, source: Callable[[int], Content]) -> None:
        self.query_one(TextPane).show_text(source, title=self._title())

    def _title(self) -> str:
        name = cut_run(self._run, MAX_NAME, ascii=self.deck.ascii)
        return f"Stacks of {name}{self._taken}{', asking' if self._waiting else ''}"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers no second request before the answer."""
        return not (action == "again" and self._waiting)

    def action_again(self) -> None:
        """Takes new stacks; the old ones stay until then."""
        self._take()
