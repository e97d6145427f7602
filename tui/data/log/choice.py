"""Which files the log of a run consists of: whose, which streams, and of which attempt."""

from pathlib import Path
from typing import Literal, NamedTuple

from engine.client.protocols import RunClient
from engine.core.views.view import RunView
from tui.data.log.file import LogFile
from tui.data.log.merged import MergedLog

STREAMS: tuple[tuple[Literal["out", "err"], ...], ...] = (("out", "err"), ("out",), ("err",))
"""Values that the key sets one after the other."""

Scope = Literal["rank", "node", "all"]


class Chosen(NamedTuple):
    """A log, and words for it."""

    log: MergedLog
    title: str


class LogChoice:
    """The log of one rank, of the ranks of a node, or of all ranks."""

    def __init__(self) -> None:
        self.scope: Scope = "rank"
        self.attempt: int | None = None  # the attempt that is shown; None: the newest
        self._stream_choice = 0
        self._folds = True
        self._chosen: object = None

    def attempt_of(self, run: RunView) -> int:
        return run.attempt if self.attempt is None else min(self.attempt, run.attempt)

    def next_streams(self) -> None:
        """Both streams, then one, then the other."""
        self._stream_choice = (self._stream_choice + 1) % len(STREAMS)

    def toggle_folds(self) -> None:
        """Lines that several ranks have printed stand once, or as often as they were printed."""
        self._folds = not self._folds

    def next_scope(self, *, nodes: bool) -> None:
        """One rank, the ranks of its node if there are several, all ranks."""
        scopes: tuple[Scope, ...] = ("rank", "node", "all") if nodes else ("rank", "all")
        self.scope = scopes[(scopes.index(self.scope) + 1) % len(scopes)] if self.scope in scopes else "rank"

    def files(self, client: RunClient, run: RunView, rank: int) -> list[Path]:
        """The files of a rank that have something in them. May wait for a file server."""
        files = [client.log_path(self.attempt_of(run), rank, stream) for stream in STREAMS[self._stream_choice]]
        return [file for file in files if file.is_file() and file.stat().st_size]

    def choose(self, client: RunClient, run: RunView, rank: int, node: str) -> Chosen | None:
        """The log to show of a rank, where no others are shown; None: the one that was chosen last."""
        of_node = next((one.ranks for one in run.nodes if rank in one.ranks), (rank,))
        ranks = {"rank": (rank,), "node": of_node, "all": tuple(range(run.world_size))}[self.scope]
        streams, attempt = STREAMS[self._stream_choice], self.attempt_of(run)
        wanted = (attempt, ranks, streams, self._folds)
        if wanted == self._chosen:
            return None
        self._chosen = wanted
        title = {
            "rank": f"rank {rank} on {node}",
            "node": f"{len(ranks)} ranks of {node}",
            "all": f"all {len(ranks)} ranks",
        }[self.scope]
        title += "" if len(streams) == 2 else f", std{streams[0]} only"
        title += f", attempt {attempt}" if run.attempt else ""
        title += "" if attempt == run.attempt else f" (the newest is {run.attempt})"
        files = [
            LogFile(client.log_path(attempt, each, stream), rank=each, stream=stream)
            for each in ranks
            for stream in streams
        ]
        return Chosen(
            MergedLog(files, client.log_order(attempt), folds=self._folds and len(ranks) > 1), f"Log: {title}"
        )
