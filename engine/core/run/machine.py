"""The state machine of a run as one pure function: `step(state, event) -> (state, actions)`.

Two rules: only this package changes a run's state, and every event is decided in every phase. Each handler matches on all phases, which
the type checker proves by `assert_never`; "nothing to do" is an `Ignore` with a reason.

    Opening ── nodes up ──> Starting ── all spawned ──> Running ── all exited 0 ──> Clearing ──> Closing ──> Ended
                                │                          │                          ▲  │
                                └── a rank failed ─> Holding or Stopping ─────────────┘  └── restart: Starting, attempt + 1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.health_events import health_noticed
from engine.core.run.holding import hold_overdue
from engine.core.run.moves import Step, ignore, outdated
from engine.core.run.node_events import (
    job_ended,
    modules_imported,
    node_cleared,
    node_closed,
    node_connected,
    node_disconnected,
    node_given_up,
    node_warned,
    part_left_out,
    run_continued,
    script_imported,
    supervisor_started,
)
from engine.core.run.parts import replay_id
from engine.core.run.rank_events import (
    rank_ended,
    rank_joined,
    rank_lost,
    rank_spawned,
    rank_waiting,
    rejoin_overdue,
)
from engine.core.run.requests import kill_requested, restart_requested, stop_requested
from engine.core.run.state import Node, Opening, Pending, RunState
from engine.core.run.store_events import store_lost, store_opened


def launch(event: ev.RunLaunched) -> Step:
    """The first state of a run."""
    nodes = tuple(Node(name=name, ranks=ranks, since=event.at) for name, ranks in event.nodes)
    state = RunState(
        run=event.run,
        name=event.name,
        on_failure=event.on_failure,
        max_restarts=event.max_restarts,
        start_together=event.start_together,
        backend=event.backend,
        fallback=event.fallback,
        spare_nodes=event.spare_nodes,
        spare_names=event.spare_names,
        launched_at=event.at,
        attempt_since=event.at,
        phase=Opening(),
        nodes=nodes,
        ranks=tuple(Pending() for _, ranks in event.nodes for _ in ranks),
    )
    return state, tuple(act.OpenNode(node=node.name) for node in nodes)


def step(state: RunState, event: AnyEvent) -> Step:
    """Decides one event.

    Args:
        state: of the run before the event.
        event: what happened.

    Returns:
        The state after the event, and what the supervisor has to do. The same `state` object if nothing changed.
    """
    if reason := outdated(state, event):
        return ignore(state, reason)
    handler: Callable[[RunState, Any], Step] = _HANDLERS[type(event)]
    return handler(state, event)


def replay(events: Iterable[AnyEvent], on_event: Callable[[int], None] | None = None) -> RunState | None:
    """The state after all events of a journal; None if there are none. Past actions are not repeated.

    Args:
        events: of the journal.
        on_event: called with the number of each event before it is replayed.
    """
    newest = deque(states(events, on_event), maxlen=1)
    return newest[0][2] if newest else None


def states(
    events: Iterable[AnyEvent], on_event: Callable[[int], None] | None = None
) -> Iterator[tuple[AnyEvent, RunState | None, RunState]]:
    """Each event of a journal with the state before it (None for the first) and the state after it.

    An event at which this fails is left out: maybe another version of rankdeck wrote it, and without it the run can at least be stopped.
    """
    events = tuple(events)
    skipped = {event.number for event in events if isinstance(event, ev.PartLeftOut)}
    before: RunState | None = None
    for number, event in enumerate(events):
        if number in skipped:
            continue
        if on_event is not None:
            on_event(number)
        if isinstance(event, ev.RunLaunched):
            after = launch(event)[0]
        elif before is not None:
            try:
                after = step(before, event)[0]
            except Exception:  # noqa: BLE001 - a defect, and the other events count
                part = replay_id(number, type(event).__name__)
                after = part_left_out(before, ev.PartLeftOut(at=event.at, part=part, number=number))[0]
        else:
            continue
        yield event, before, after
        before = after


def _run_launched(state: RunState, event: ev.RunLaunched) -> Step:
    """A run is launched once."""
    return ignore(state, "the run is launched already")


_HANDLERS: dict[type[ev.Event], Callable[[RunState, Any], Step]] = {
    ev.RunLaunched: _run_launched,
    ev.SupervisorStarted: supervisor_started,
    ev.NodeConnected: node_connected,
    ev.NodeDisconnected: node_disconnected,
    ev.NodeGivenUp: node_given_up,
    ev.JobEnded: job_ended,
    ev.RunContinued: run_continued,
    ev.NodeWarned: node_warned,
    ev.PartLeftOut: part_left_out,
    ev.ModulesImported: modules_imported,
    ev.ScriptImported: script_imported,
    ev.NodeCleared: node_cleared,
    ev.NodeClosed: node_closed,
    ev.StoreOpened: store_opened,
    ev.StoreLost: store_lost,
    ev.RankSpawned: rank_spawned,
    ev.RankWaiting: rank_waiting,
    ev.RankJoined: rank_joined,
    ev.RejoinOverdue: rejoin_overdue,
    ev.RankEnded: rank_ended,
    ev.RankLost: rank_lost,
    ev.HoldOverdue: hold_overdue,
    ev.HealthNoticed: health_noticed,
    ev.StopRequested: stop_requested,
    ev.RestartRequested: restart_requested,
    ev.KillRequested: kill_requested,
}
