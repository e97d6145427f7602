"""A check of the nodes: the results as they arrive, and the text of the cell under the cursor."""

import contextlib
from functools import partial

from textual import on, work
from textual.app import ComposeResult

from engine.core.catalogue import ProfileEntry
from engine.core.checks.findings import CHECKS, Begun, Check, Grid
from engine.core.errors import NotTrustedError, RankdeckError
from engine.core.plan.profile import Profile
from engine.gate import Permit
from tui.data.off_loop import off_loop
from tui.keys import bindings
from tui.screens.base import DeckScreen
from tui.screens.trust import ask_for_trust
from tui.text.cells import plain_line
from tui.text.check import finding_text, grid_title
from tui.text.lines import error_text
from tui.widgets.check_grid import CheckGrid
from tui.widgets.key_bar import KeyBar
from tui.widgets.line_keys import CursorMoved
from tui.widgets.text_pane import TextPane, fitted_title

DRAW_SECONDS = 0.15  # seconds between two drawings: hundreds of nodes answer at once


class CheckScreen(DeckScreen):
    """The grid of a profile's nodes, and the text of one of its cells. `entry`: says whether it is trusted."""

    BINDINGS = bindings("check")
    AUTO_FOCUS = "#grid"

    def __init__(self, entry: ProfileEntry, profile: Profile) -> None:
        super().__init__()
        self._entry, self._profile = entry, profile
        self._grid = Grid(())
        self._is_looking = self._has_news = False
        self._error: RankdeckError | None = None
        self._has_moved = False

    def compose(self) -> ComposeResult:
        yield CheckGrid(ascii=self.deck.ascii)
        yield TextPane(id="finding", ascii=self.deck.ascii, focus=False)
        yield KeyBar()

    def on_mount(self) -> None:
        self.set_interval(DRAW_SECONDS, self._draw_changes)
        self._look()

    @work(group="check", exit_on_error=False)
    async def _look(self) -> None:
        if self._is_looking:
            return
        self._is_looking, self._error, self._has_moved = True, None, False
        self._note_change()
        try:
            try:
                await self._check(await off_loop(self.engine.permit, self._entry))
            except NotTrustedError:
                await self._check(await ask_for_trust(self.app, self.engine, self._entry))
        except RankdeckError as error:
            self._error = error
            self.say(plain_line(error.message), error=True)
        finally:
            self._is_looking = False
            self._note_change()
        self._draw_changes()
        problems = self._problems()
        if problems and not self._has_moved:
            self.query_one(CheckGrid).move_to(*problems[0])

    async def _check(self, permit: Permit) -> None:
        async with contextlib.aclosing(self.engine.check(self._profile, permit)) as stream:
            async for news in stream:
                if isinstance(news, Begun):
                    self._grid = Grid(news.nodes)
                else:
                    self._grid.take(news)
                self._has_news = True

    # --- drawing ---------------------------------------------------------------------------------------------------------

    def _note_change(self) -> None:
        self._has_news = True
        self.refresh_bindings()

    def _draw_changes(self) -> None:
        if self._has_news:
            self._has_news = False
            grid = self.query_one(CheckGrid)
            grid.show_grid(self._grid)
            title = grid_title(self._profile.name, self._grid, is_running=self._is_looking, ascii=self.deck.ascii)
            grid.border_title = fitted_title(grid, title, ascii=self.deck.ascii)
            self._show_cell()

    def _show_cell(self) -> None:
        cell = self.query_one(CheckGrid).cell
        pane = self.query_one("#finding", TextPane)
        if self._error is not None:
            pane.show_text(partial(error_text, self._error))
        elif cell is not None:
            ascii = self.deck.ascii
            pane.show_text(partial(finding_text, *cell, self._grid.at(*cell), ascii=ascii))

    def on_resize(self) -> None:
        self._has_news = True

    @on(CursorMoved)
    def _moved(self) -> None:
        self._has_moved = True
        self._show_cell()

    # --- keys ------------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "again":
                return not self._is_looking
            case "next_problem":
                return bool(self._grid.in_state("fail", "warn"))
        return True

    def action_again(self) -> None:
        self._look()

    def action_next_problem(self) -> None:
        """Goes to the next failure or warning after the cursor, or else to the first."""
        self._draw_changes()
        grid = self.query_one(CheckGrid)
        problems = self._problems()
        if problems and grid.cell is not None:
            order = {node: row for row, node in enumerate(self._grid.nodes)}
            node, check = grid.cell
            here = order[node], CHECKS.index(check)
            after = ((one, its) for one, its in problems if (order[one], CHECKS.index(its)) > here)
            grid.move_to(*next(after, problems[0]))

    def _problems(self) -> list[tuple[str, Check]]:
        return [(one.node, one.check) for one in self._grid.in_state("fail", "warn")]
