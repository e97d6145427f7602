"""Help: every key, sign and term, from the tables that the app itself uses."""

from collections.abc import Collection
from functools import partial

from textual.app import ComposeResult

from tui.keys import bindings
from tui.screens.base import DeckScreen
from tui.text.help import help_text
from tui.widgets.key_bar import KeyBar
from tui.widgets.search_line import SearchLine
from tui.widgets.text_pane import TextPane


class HelpScreen(DeckScreen):
    BINDINGS = bindings("help")
    AUTO_FOCUS = "#help"

    def __init__(self, here: Collection[str] = ()) -> None:
        """`here`: places of the table of keys that the user comes from; their keys come first."""
        super().__init__()
        self._here = here

    def compose(self) -> ComposeResult:
        yield TextPane(id="help", ascii=self.deck.ascii)
        words = "search for a key, an action or a term"
        yield SearchLine("query", words, changed=self._show, done=lambda _: self.set_focus(self.query_one("#help")))
        yield KeyBar()

    def on_mount(self) -> None:
        self._show("")

    def _show(self, query: str) -> None:
        pane = self.query_one("#help", TextPane)
        text = partial(help_text, query.strip(), ascii=self.deck.ascii, keymap=self.deck.keymap, here=self._here)
        pane.show_text(text, title="Help")
        pane.scroll_home(animate=False)

    def action_search(self) -> None:
        self.query_one(SearchLine).open()

    def action_close(self) -> None:
        search = self.query_one(SearchLine)
        if search.display:
            search.close()
            self.set_focus(self.query_one("#help"))
        else:
            self.dismiss()
