"""The log pane of a run: which ranks, which streams and which lines it shows, and what its border says of that."""

from __future__ import annotations

from typing import Literal

from textual import events, on
from textual.content import Content

from engine.client.protocols import RunClient
from engine.core.log_levels import LEVELS
from engine.core.views.view import RunView
from tui.data.log_file import LogFile
from tui.data.log_filter import LogFilter
from tui.data.log_folding import Line
from tui.data.log_pattern import PatternError
from tui.data.merged_log import MergedLog
from tui.text.cells import plain_line
from tui.text.log import filter_words, search_words
from tui.widgets import log_lines
from tui.widgets.log_view import LogView
from tui.widgets.text_pane import fitted_title

STREAMS: tuple[tuple[Literal["out", "err"], ...], ...] = (("out", "err"), ("out",), ("err",))
"""Values that the key sets in turn."""

LEAST = (0, LEVELS.index("warning"), LEVELS.index("error"))
"""The same for levels."""

Scope = Literal["rank", "node", "all"]


class RunLog(LogView):
    """The log of one rank, of those of a node, or of all, of the current attempt."""

    def __init__(self, *, ascii: bool, id: str, classes: str) -> None:
        super().__init__(ascii=ascii, id=id, classes=classes)
        self.scope: Scope = "rank"
        self._stream_choice = 0
        self._shown_files: object = None
        self._of = ""
        """Whose log it is, in words."""
        self._shown = LogFilter()
        self._folds = True
        self.attempt: int | None = None
        """The attempt that is shown; None: the newest."""
        self._filter_error = ""

    # --- what is shown -----------------------------------------------------------------------------------------------

    @property
    def streams(self) -> tuple[Literal["out", "err"], ...]:
        """The streams that are shown."""
        return STREAMS[self._stream_choice]

    def attempt_of(self, run: RunView) -> int:
        """The attempt of a run that is shown."""
        return run.attempt if self.attempt is None else min(self.attempt, run.attempt)

    def copied(self) -> MergedLog | None:
        """What is shown, for somebody else to read, every line as often as it was printed."""
        return None if self._log is None else self._log.copy(folds=False)

    def head(self, log: MergedLog, line: Line) -> str:
        """What stands before a line."""
        head = log_lines.prefix(log, line, ascii=True)
        return head.text.removeprefix(head.sign)

    def next_streams(self) -> None:
        """Both streams, then one, then the other; takes effect with `show_run`."""
        self._stream_choice = (self._stream_choice + 1) % len(STREAMS)

    def toggle_folds(self) -> None:
        """Lines that several ranks have printed stand once, or as often as they were printed; takes effect with `show_run`."""
        self._folds = not self._folds

    def next_scope(self, *, nodes: bool) -> None:
        """One rank, the ranks of its node if there are several, all ranks; takes effect with `show_run`."""
        scopes: tuple[Scope, ...] = ("rank", "node", "all") if nodes else ("rank", "all")
        self.scope = scopes[(scopes.index(self.scope) + 1) % len(scopes)] if self.scope in scopes else "rank"

    def show_run(self, client: RunClient, run: RunView, rank: int, node: str) -> None:
        """Shows the files of a rank, or of several; nothing happens where they are shown already.

        Args:
            client: knows the files.
            run: its attempt is the one that is shown.
            rank: the rank, where no others are shown.
            node: where it runs.
        """
        of_node = next((one.ranks for one in run.nodes if rank in one.ranks), (rank,))
        ranks = {"rank": (rank,), "node": of_node, "all": tuple(range(run.world_size))}[self.scope]
        streams, attempt = self.streams, self.attempt_of(run)
        wanted = (attempt, ranks, streams, self._folds)
        if wanted == self._shown_files:
            return
        self._shown_files = wanted
        scopes = {
            "rank": f"rank {rank} on {node}",
            "node": f"{len(ranks)} ranks of {node}",
            "all": f"all {len(ranks)} ranks",
        }
        title = scopes[self.scope]
        title += "" if len(streams) == 2 else f", std{streams[0]} only"
        title += f", attempt {attempt}" if run.attempt else ""
        title += "" if attempt == run.attempt else f" (the newest is {run.attempt})"
        self._of = f"Log: {plain_line(title)}"
        files = [
            LogFile(client.log_path(attempt, each, stream), rank=each, stream=stream)
            for each in ranks
            for stream in streams
        ]
        order = client.log_order(attempt)
        self.show(MergedLog(files, order, self._shown, folds=self._folds and len(ranks) > 1), self._titled())

    def _titled(self) -> str:
        return ", ".join(filter(None, (self._of, plain_line(self._shown.words))))

    # --- the filter --------------------------------------------------------------------------------------------------

    @property
    def is_filtered(self) -> bool:
        """Whether lines are left out."""
        return not self._shown.is_empty

    def filter(self, text: str | None = None, least: int | None = None) -> None:
        """Shows only some lines: see `LogFilter` for both. None: as before."""
        self._filter_error = ""
        try:
            shown = LogFilter(self._shown.text if text is None else text, self._shown.least if least is None else least)
        except PatternError as error:
            self._filter_error = f"can't be filtered by: {error}"
            self.show_border()
            return
        self._shown = shown
        self.set_filter(shown, self._titled())
        self.show_border()

    def action_levels(self) -> None:
        """All lines, warnings and worse, errors only."""
        self.filter(least=LEAST[(LEAST.index(self._shown.least) + 1) % len(LEAST)])

    def action_errors(self) -> None:
        self.search_errors()

    # --- the border --------------------------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        """Fits the border's words: a pane that was not displayed so far had no room for any."""
        self.show_border()

    @on(LogView.Changed)
    def show_border(self) -> None:
        """Says in the border what is shown, what is sought, and whether the end is followed."""
        self.border_title = fitted_title(self, self.title or "Log", ascii=self.ascii)
        words = (
            self._filter_error or filter_words(self._shown),
            search_words(self.pattern, self.found, self.wrapped, self.pattern_error),
            self.badge,
        )
        self.border_subtitle = Content(plain_line(", ".join(filter(None, words))))
