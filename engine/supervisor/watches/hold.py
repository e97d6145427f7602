"""Ends a run that holds for too long, and lets go of what one without a living rank keeps in memory."""

from __future__ import annotations

from engine.core.run import events as ev
from engine.core.run.requests import IDLE_LIMIT, hold_ends_at, idle_since
from engine.supervisor.nodes.orders import Orders
from engine.supervisor.run import SupervisedRun


class HoldWatch:
    """Looks at the time while a run holds."""

    def __init__(self, run: SupervisedRun, orders: Orders) -> None:
        self._run, self._orders = run, orders
        self._let_go: float | None = None
        """Since when the run was idle when it was let go."""

    def look(self, now: float) -> None:
        """Looks once."""
        state, hold_for = self._run.state, self._run.plan.launch.hold_for
        ends_at, idle = hold_ends_at(state, hold_for), idle_since(state)
        if ends_at is not None and now >= ends_at:
            self._run.handle(ev.HoldOverdue(at=now, attempt=state.attempt, seconds=hold_for))
        elif idle is not None and idle != self._let_go and now >= idle + IDLE_LIMIT:
            self._let_go = idle
            self._orders.let_go()
