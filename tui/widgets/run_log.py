"""The log pane of a run: which ranks and which streams it shows, and what its border says of that."""

from __future__ import annotations

from typing import Literal

from textual import events, on
from textual.content import Content

from engine.client.protocols import RunClient
from engine.core.views.view import RunView
from tui.data.log_file import LogFile
from tui.data.merged_log import MergedLog
from tui.text.cells import plain_line
from tui.text.log import search_words
from tui.widgets.log_view import LogView
from tui.widgets.text_pane import fitted_title

STREAMS: tuple[tuple[Literal["out", "err"], ...], ...] = (("out", "err"), ("out",), ("err",))
"""What the key goes through."""


class RunLog(LogView):
    """The log of one rank or of all, of the current attempt."""

    def __init__(self, *, ascii: bool, id: str, classes: str) -> None:
        super().__init__(ascii=ascii, id=id, classes=classes)
        self.all_ranks = False
        self._stream_choice = 0
        self._shown_files: object = None

    def next_streams(self) -> None:
        """Both streams, then one, then the other; takes effect with `show_run`."""
        self._stream_choice = (self._stream_choice + 1) % len(STREAMS)

    def show_run(self, client: RunClient, run: RunView, rank: int, node: str) -> None:
        """Shows the files of a rank, or of all; nothing happens where they are shown already.

        Args:
            client: knows the files.
            run: its attempt is the one that is shown.
            rank: the rank, where not all are shown.
            node: where it runs.
        """
        ranks = tuple(range(run.world_size)) if self.all_ranks else (rank,)
        streams = STREAMS[self._stream_choice]
        wanted = (run.attempt, ranks, streams)
        if wanted == self._shown_files:
            return
        self._shown_files = wanted
        title = f"all {len(ranks)} ranks" if self.all_ranks else f"rank {rank} on {node}"
        title += "" if len(streams) == 2 else f", std{streams[0]} only"
        title += f", attempt {run.attempt}" if run.attempt else ""
        files = [
            LogFile(client.log_path(run.attempt, each, stream), rank=each, stream=stream)
            for each in ranks
            for stream in streams
        ]
        self.show(MergedLog(files), f"Log: {plain_line(title)}")

    def on_resize(self, event: events.Resize) -> None:
        """Fits the border's words: a pane that was not displayed so far had no room for any."""
        self.show_border()

    @on(LogView.Changed)
    def show_border(self) -> None:
        """Says in the border what is shown, what is sought, and whether the end is followed."""
        self.border_title = fitted_title(self, self.title or "Log", ascii=self.ascii)
        words = (search_words(self.sought, self.found, self.wrapped, self.pattern_error), self.badge)
        self.border_subtitle = Content(plain_line(", ".join(filter(None, words))))
