"""A run, live: its ranks, their output, its curves and events, and why it failed. One worker folds the supervisor's messages into a
`RunModel`; timers paint what changed in the visible panes, so a slow terminal delays nothing else. If the connection breaks, the worker
attaches again for as long as the screen exists."""

from textual import on, work
from textual.app import App, ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from engine.core.errors import SupervisorElsewhereError, UsageError
from tui.data.model import RunModel
from tui.data.off_loop import off_loop
from tui.data.run_link import RunLink
from tui.keys import bindings, first_key
from tui.screens.base import DeckScreen
from tui.screens.relaunch import Relaunching
from tui.screens.run_acts import RunActs
from tui.screens.run_logs import RunLogs
from tui.screens.run_painter import RunPainter
from tui.screens.run_panes import LOWER, RunPanes
from tui.screens.run_ranks import RunRanks
from tui.screens.stacks import StacksScreen
from tui.text.cells import plain_line
from tui.widgets.bench_pane import BenchPane
from tui.widgets.headers import RunHeader
from tui.widgets.key_bar import KeyBar
from tui.widgets.line_keys import CursorChosen, CursorMoved
from tui.widgets.log_view import LogView
from tui.widgets.node_grid import NodeGrid
from tui.widgets.rank_table import RankTable
from tui.widgets.run_charts import RunCharts
from tui.widgets.text_pane import TextPane

FEW = 16  # ranks of one node for which the table is enough


class RunScreen(DeckScreen):
    """One run. Leaving it leaves the app if it was all that the user asked for."""

    BINDINGS = bindings("run")
    AUTO_FOCUS = "#ranks"
    gives_way = True

    def __init__(self, run: str, *, came_from: str = "", leaves_app: bool = False) -> None:
        super().__init__()
        self.run_id = run
        self.model = RunModel()
        self.link = RunLink(self.engine, run, self.model, self.link_changed)
        self.ranks = RunRanks(self, self.model)
        self.logs = RunLogs(self, self.link, self.model, lambda: self.ranks.rank)
        self.panes = RunPanes(self, self.model, self.ranks, self.logs, lambda: self.painter.paint_all())
        again = Relaunching(self, lambda: self.model.run)
        self.acts = RunActs(
            self,
            self.link,
            self.model,
            lambda: self.ranks.rank,
            again=again.action_launch_again,
            watch=lambda: self._watch(),
        )
        self.add_parts(self.logs, self.panes, self.acts, again)
        self.leaves_app = leaves_app
        self._came_from = came_from
        self.painter = RunPainter(self, self.link, self.model, (self.ranks, self.logs, self.panes, self.acts))

    def compose(self) -> ComposeResult:
        """Header, ranks, and below them the log or another pane; beside it, why the run failed."""
        ascii = self.deck.ascii
        yield RunHeader(ascii=ascii)
        yield Static(id="banner", markup=False)
        table = RankTable(ascii=ascii, look=self.deck.look, units=self.deck.units, id="ranks", classes="pane")
        table.none_matches = f"No rank matches. {first_key('run.back', self.deck.keymap)} shows all again."
        yield table
        yield NodeGrid(ascii=ascii, units=self.deck.units, id="nodes", classes="pane")
        with Container(id="lower"):
            yield RunCharts(ascii=ascii, slow=self.deck.slow)
            yield LogView(ascii=ascii, id="log", classes="pane")
            yield TextPane(id="events", ascii=ascii)
            yield BenchPane(ascii=ascii, slow=self.deck.slow)
            yield TextPane(id="why", ascii=ascii)
        yield self.ranks.line
        yield self.panes.search
        yield self.panes.filter
        yield KeyBar()

    def on_mount(self) -> None:
        for name in ("ranks", *LOWER, "why"):
            self.panes.widget(name).border_title = Content("Results" if name == "bench" else name.capitalize())
        self.query_one("#events", TextPane).anchor()  # follows its end until somebody scrolls up
        self.query_one("#banner").display = False
        self.panes.pane = self.deck.look.pane
        self.query_one(RunCharts).show_panels(self.deck.look.charts)
        self.panes.arrange()
        self.painter.start()
        self._watch()

    async def on_unmount(self) -> None:
        """Closes the connection; the run keeps running."""
        await self.link.close()

    # --- what the supervisor says -------------------------------------------------------------------------------------

    @work(exclusive=True, group="watch", exit_on_error=False)
    async def _watch(self) -> None:
        try:
            await self.link.keep()
        except (UsageError, SupervisorElsewhereError) as error:
            if self.model.snapshots or not self.is_current:
                self.painter.show_banner(error.message)
            elif self.leaves_app:
                self.deck.leave(str(error))
            else:
                self.dismiss()
                self.deck.show_error("This run can't be shown", error)

    def link_changed(self, problem: str) -> None:
        """Shows the problem with the connection, or nothing. The first message of a run is painted at once."""
        self.painter.show_banner(problem)
        if self.model.revision == 1:
            self.painter.paint()

    @on(CursorMoved)
    def _rank_highlighted(self) -> None:
        self.logs.show()
        self.refresh_bindings()

    @on(CursorChosen)
    def _rank_selected(self) -> None:
        self.panes.action_open_log()

    # --- keys ---------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        run = self.model.run
        match action:
            case "restart" | "stop" | "kill" | "editor":
                return self.acts.offers(action)
            case "stacks":
                return run is not None and self.link.client is not None and not self.model.ended
            case "by_node":
                return run is not None and (len(run.nodes) > 1 or run.world_size > FEW)
            case "pane" if parameters == ("bench",):
                return self.painter.measures
            case "attempt":
                return run is not None and run.attempt > 0
            case "next_curves":
                return self.is_mounted and self.query_one(BenchPane).display
            case "pane" if parameters == ("why",):
                return self.panes.has_explanation
            case "next_match" | "previous_match":
                return self.is_mounted and self.logs.view.finder.pattern is not None
            case "back":
                return self.is_mounted and self.panes.can_go_back
        return True

    def on_resize(self) -> None:
        """A broad screen shows other panes; it is known as one after the refresh, when it may be closed already."""
        self.call_after_refresh(lambda: self.panes.arrange() if self.query(RankTable) else None)

    @work(exclusive=True, group="beside", exit_on_error=False)
    async def action_beside(self, direction: int) -> None:
        """Shows the next or the previous run of the list."""
        runs = [run.run for run in await off_loop(self.engine.runs)]
        place = runs.index(self.run_id) + direction if self.run_id in runs else 0
        if 0 <= place < len(runs):
            self.deck.open_run(runs[place])
        else:
            self.say("this is the oldest run" if direction > 0 else "this is the newest run")

    @work(exclusive=True, group="compare", exit_on_error=False)
    async def action_compare(self) -> None:
        past = self.model.run
        if past is None:
            return
        runs = await off_loop(self.engine.runs)
        same = (run.run for run in runs if run.name == past.name and run.run != past.run)
        if other := self._came_from or next(same, ""):
            self.deck.open_compare(tuple(run.run for run in reversed(runs) if run.run in (other, past.run)))
        else:
            self.say("there is no other run of this profile to compare with")

    def action_stacks(self) -> None:
        if self.model.run is not None and self.link.client is not None:
            self.app.push_screen(StacksScreen(self.model.run.name, self.link.client.stacks))

    @property
    def parting(self) -> str | None:
        """How to come back to a run that goes on, if only until it has stopped."""
        run = self.model.run
        if run is None or self.model.ended:
            return None
        activity = "is stopping" if self.acts.is_stopping else "keeps running"
        return f"{plain_line(run.name)} {activity}: rankdeck attach {self.run_id}"

    def key_label(self, key: str) -> str:
        if key == "run.detach" and self.model.ended:
            return "close"
        if key == "run.restart" and self.model.run is not None and self.model.run.state == "succeeded":
            return "run again"
        if key == "run.search" and self.is_mounted and self.ranks.table.has_focus:
            return "filter"
        return ""

    def action_detach(self) -> None:
        parting = self.parting
        if self.leaves_app:
            self.deck.leave(parting)
            return
        self.dismiss()
        if parting is not None:
            self.deck.say(parting)


async def show_run(app: App[None], run: str, *, leaves_app: bool) -> None:
    """Shows a run. It takes the place of the run, and of the form, that it was launched from: to leave it leads to where these were opened.
    `leaves_app`: leaving the run leaves the app."""
    if isinstance(app.screen, RunScreen) and app.screen.run_id == run:
        return
    came_from = ""
    with app.batch_update():
        while isinstance(before := app.screen, DeckScreen) and before.gives_way:
            if isinstance(before, RunScreen):
                leaves_app, came_from = before.leaves_app, came_from or before.run_id
            await app.pop_screen()
        await app.push_screen(RunScreen(run, came_from=came_from, leaves_app=leaves_app))
