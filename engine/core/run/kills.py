"""Remembers which user's signal ended a rank."""

from __future__ import annotations

from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.health_events import ON_NAN, SIGKILL


class Kills:
    """The newest signal that a user sent to each process of a rank. It explains only the end of that process."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[str, int]] = {}
        """(user, signal) by rank."""

    def take(self, event: AnyEvent) -> None:
        """Notes a signal, or the end of a rank."""
        match event:
            case ev.KillRequested():
                self._newest[event.rank] = event.by, event.signal
            case ev.HealthNoticed(policy="hold"):
                self._newest |= dict.fromkeys(event.ranks, (ON_NAN, SIGKILL))
            case ev.RankSpawned() | ev.RankEnded() | ev.RankLost():
                self._newest.pop(event.rank, None)

    def sender(self, rank: int, status: int) -> str:
        """The user whose signal ended a rank; empty: no user's."""
        by, number = self._newest.get(rank, ("", 0))
        return by if number == -status else ""
