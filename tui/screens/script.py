"""The script of a recipe, to read."""

from functools import partial

from textual.app import ComposeResult

from tui.keys import bindings
from tui.screens.base import DeckScreen
from tui.text.cells import plain_line
from tui.text.recipes import script_text
from tui.widgets.key_bar import KeyBar
from tui.widgets.text_pane import TextPane


class ScriptScreen(DeckScreen):
    BINDINGS = bindings("script")
    AUTO_FOCUS = "#script"

    def __init__(self, recipe: str, source: str) -> None:
        super().__init__()
        self._recipe = recipe
        self._source = source

    def compose(self) -> ComposeResult:
        yield TextPane(id="script", ascii=self.deck.ascii)
        yield KeyBar()

    def on_mount(self) -> None:
        name = plain_line(self._recipe)
        title = f"{name}: rankdeck recipes copy {name} train.py copies it as your script"
        source = partial(script_text, self._source, ascii=self.deck.ascii)
        self.query_one(TextPane).show_text(source, title=title)
