"""Remembers which user's signal ended a rank."""

from __future__ import annotations

from engine.core.run import events as ev
from engine.core.run.events import AnyEvent


class Kills:
    """The newest signal that a user sent to each process of a rank. It explains only the end of that process."""

    def __init__(self) -> None:
        self._newest: dict[int, ev.KillRequested] = {}

    def take(self, event: AnyEvent) -> None:
        """Notes a signal, or the end of a rank."""
        match event:
            case ev.KillRequested():
                self._newest[event.rank] = event
            case ev.RankSpawned() | ev.RankEnded() | ev.RankLost():
                self._newest.pop(event.rank, None)

    def sender(self, rank: int, status: int) -> str:
        """The user whose signal ended a rank; empty: no user's.

        Args:
            rank: that has ended.
            status: minus the number of the signal.
        """
        kill = self._newest.get(rank)
        return kill.by if kill is not None and kill.signal == -status else ""
