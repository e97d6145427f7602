"""The state machine of a run as one pure function: `step(state, event) -> (state, actions)`.

Two rules: only this package changes a run's state, and every event is decided in every phase. `step` matches on all events and each handler
on all phases. The type checker proves that: a missing case would be a missing return. "Nothing to do" is an `Ignore` with a reason.
`docs/architecture.md` has the table of events and phases.

    Opening ── nodes up ──> Starting ── all spawned ──> Running ── all exited 0 ──> Clearing ──> Closing ──> Ended
                                │                          │                          ▲  │
                                └── a rank failed ─> Holding or Stopping ─────────────┘  └── restart: Starting, attempt + 1
"""

from collections import deque
from collections.abc import Iterable, Iterator

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run import node_events, rank_events
from engine.core.run import state as st
from engine.core.run.events import AnyEvent
from engine.core.run.health_events import health_noticed
from engine.core.run.moves import Step, ignore, outdated
from engine.core.run.requests import hold_overdue, kill_requested, restart_requested, stop_requested
from engine.core.run.store_events import store_lost, store_missed, store_opened


def launch(event: ev.RunLaunched) -> Step:
    nodes = tuple(st.Node(name=name, ranks=ranks, since=event.at) for name, ranks in event.nodes)
    state = st.RunState(
        run=event.run,
        name=event.name,
        on_failure=event.on_failure,
        max_restarts=event.max_restarts,
        restart_when=event.restart_when,
        start_together=event.start_together,
        backend=event.backend,
        fallback=event.fallback,
        spare_nodes=event.spare_nodes,
        spare_names=event.spare_names,
        launched_at=event.at,
        attempt_since=event.at,
        phase=st.Opening(),
        nodes=nodes,
        ranks=tuple(st.Pending() for _, ranks in event.nodes for _ in ranks),
    )
    return st.with_span(state, event.at), tuple(act.OpenNode(node=node.name) for node in nodes)


def step(state: st.RunState, event: AnyEvent) -> Step:
    """Decides one event: the state after it (the same object if nothing changed), and what the supervisor has to do."""
    after, actions = _decide(state, event)
    return (after if after is state else st.with_span(after, event.at)), actions


def _decide(state: st.RunState, event: AnyEvent) -> Step:
    if reason := outdated(state, event):
        return ignore(state, reason)
    match event:
        case ev.RunLaunched():
            return ignore(state, "the run is launched already")
        case ev.SupervisorStarted():
            return node_events.supervisor_started(state, event)
        case ev.NodeConnected():
            return node_events.node_connected(state, event)
        case ev.NodeDisconnected():
            return node_events.node_disconnected(state, event)
        case ev.NodeGivenUp():
            return node_events.node_given_up(state, event)
        case ev.JobEnded():
            return node_events.job_ended(state, event)
        case ev.RunQueued():
            return node_events.run_queued(state, event)
        case ev.JobEnding():
            return node_events.job_ending(state, event)
        case ev.RunContinued():
            return node_events.run_continued(state, event)
        case ev.NodeWarned() | ev.ModulesImported() | ev.ScriptImported() | ev.CheckpointFolderSeen():
            return node_events.shown_event(state, event)
        case ev.NodeCleared():
            return node_events.node_cleared(state, event)
        case ev.NodeClosed():
            return node_events.node_closed(state, event)
        case ev.StoreOpened():
            return store_opened(state, event)
        case ev.StoreLost():
            return store_lost(state, event)
        case ev.StoreMissed():
            return store_missed(state, event)
        case ev.RankSpawned():
            return rank_events.rank_spawned(state, event)
        case ev.RankWaiting():
            return rank_events.rank_waiting(state, event)
        case ev.RankJoined():
            return rank_events.rank_joined(state, event)
        case ev.RejoinOverdue():
            return rank_events.rejoin_overdue(state, event)
        case ev.RankEnded():
            return rank_events.rank_ended(state, event)
        case ev.RankLost():
            return rank_events.rank_lost(state, event)
        case ev.CheckpointsFound():
            return rank_events.checkpoints_found(state, event)
        case ev.HoldOverdue():
            return hold_overdue(state, event)
        case ev.HealthNoticed():
            return health_noticed(state, event)
        case ev.StopRequested():
            return stop_requested(state, event)
        case ev.RestartRequested():
            return restart_requested(state, event)
        case ev.KillRequested():
            return kill_requested(state, event)


def replay(events: Iterable[AnyEvent]) -> st.RunState | None:
    """The state after all events of a journal; None if there are none. Past actions are not repeated."""
    newest = deque(states(events), maxlen=1)
    return newest[0][2] if newest else None


def states(events: Iterable[AnyEvent]) -> Iterator[tuple[AnyEvent, st.RunState | None, st.RunState]]:
    """Each event of a journal with the state before it (None for the first) and the state after it. An event at which this fails is left
    out: maybe another version of rankdeck wrote it, and without it the run can at least be stopped."""
    before: st.RunState | None = None
    for event in events:
        if isinstance(event, ev.RunLaunched):
            after = launch(event)[0]
        elif before is not None:
            try:
                after = step(before, event)[0]
            except Exception:  # noqa: BLE001 - a defect, and the other events count
                continue
        else:
            continue
        yield event, before, after
        before = after
