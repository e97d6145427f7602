"""An app of nothing but the widgets, for tests in a real terminal: `python -m tests.tui.widget_app FOLDER`.

`x` shows everything hostile that there is, and a log of `FOLDER/log`; `z` goes to the first line of the log; any other key is
counted on the screen; ctrl+q leaves.
"""

import sys
from pathlib import Path

from textual import events
from textual.app import App, ComposeResult
from textual.content import Content
from textual.widgets import Static

from engine.core.metrics.series import Series
from engine.core.views.view import RankView
from tests.tui.hostile import CORPUS
from tui.data.log.file import LogFile
from tui.data.log.merged import MergedLog
from tui.data.model import Row
from tui.driver import RankdeckDriver
from tui.text.cells import clean
from tui.theme import CSS as CSS_FILE
from tui.widgets.chart import Chart
from tui.widgets.log_view import LogView
from tui.widgets.rank_table import RankTable


class WidgetApp(App[None]):
    """The widgets, one below the other."""

    CSS_PATH = CSS_FILE
    CSS = "RankTable { height: 10; } LogView { height: 36; } Chart { height: 8; } Static { height: 1; }"

    def __init__(self, folder: Path) -> None:
        super().__init__(driver_class=RankdeckDriver)
        self.folder = folder
        self.keys = 0

    def compose(self) -> ComposeResult:
        yield Static("ready", id="count")
        yield RankTable()
        yield LogView()
        yield Chart()
        yield Static("", id="clean")

    def on_mount(self) -> None:
        self.set_interval(0.05, self.query_one(LogView).poll)

    def on_key(self, event: events.Key) -> None:
        if event.key == "x":
            self.show_everything()
        elif event.key == "z":
            self.query_one(LogView).action_first()
        elif event.key != "ctrl+q":
            self.keys += 1
            self.query_one("#count", Static).update(Content(f"keys {self.keys}: {event.key}"))

    def show_everything(self) -> None:
        texts = [data.decode("utf-8", "surrogateescape") for data in CORPUS.values()]
        rows = []
        for rank, text in enumerate(texts):
            view = RankView(
                rank=rank, node=text, local_rank=0, pid=1, state="failed", exit=1, attempt=1, generation=1, unit=text,
                note=text if rank % 2 else "", last_line=text,
            )  # fmt: skip
            rows.append(Row(view))
        self.query_one(RankTable).set_rows(rows, 0.0)
        series = Series(0, "loss")
        for step in range(10):
            series.append(step, step, step)
        self.query_one(Chart).set_series(texts[0], [(text, series) for text in texts[:4]])
        self.query_one("#clean", Static).update(Content(clean(" ".join(texts)[:1000]).replace("\n", " ")))
        self.query_one(LogView).show(MergedLog([LogFile(self.folder / "log", rank=0)]), texts[0])


if __name__ == "__main__":
    app = WidgetApp(Path(sys.argv[1]))
    app.run()
    sys.exit(app.return_code)
