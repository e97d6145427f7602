"""Handlers of what happens to the nodes, and to the links to their agents."""

from msgspec.structs import replace

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run import state as st
from engine.core.run.actions import AnyAction
from engine.core.run.moves import (
    UNREACHABLE_PATIENCE,
    Step,
    ignore,
    is_ending,
    next_attempt,
    outdated,
    set_node,
    set_rank,
    spawn,
    stop,
    up_nodes,
    when_cleared,
    when_closed,
    when_opened,
)
from engine.core.run.rank_events import rank_ended, rank_lost, rank_spawned
from engine.core.run.rejoin import rejoin, tell, tell_again, why_no_rejoin
from engine.core.run.requests import stop_requested

RankEvent = ev.RankSpawned | ev.RankEnded | ev.RankLost
Fact = ev.NodeWarned | ev.ModulesImported | ev.ScriptImported | ev.CheckpointFolderSeen


def supervisor_started(state: st.RunState, event: ev.SupervisorStarted) -> Step:
    """Connects a new supervisor to all agents."""
    match state.phase:
        case st.Ended():
            return ignore(state, "the run has ended")
        case st.Opening() | st.Starting() | st.Running() | st.Holding() | st.Stopping() | st.Clearing() | st.Closing():
            wanted = [node.name for node in state.nodes if node.link in ("up", "down")]
            for name in wanted:
                state = set_node(state, name, link="down", reason="a new supervisor is connecting", since=event.at)
            patience = UNREACHABLE_PATIENCE if is_ending(state) else None
            return state, tuple(act.OpenNode(node=name, patience=patience) for name in wanted)


def node_connected(state: st.RunState, event: ev.NodeConnected) -> Step:
    """Updates the state from the agent's report, and sends the requests that the phase still needs."""
    match state.phase:
        case st.Ended():
            return state, (act.CloseNode(node=event.node),)
        case st.Closing():
            state = set_node(state, event.node, link="up", reason="", was_up=True)
            return state, (act.CloseNode(node=event.node),)
        case st.Opening() | st.Starting() | st.Running() | st.Holding() | st.Stopping() | st.Clearing():
            state = set_node(state, event.node, link="up", reason="", since=event.at, was_up=True)
    # Ends processes of an earlier attempt on a node that was given up and has come back.
    alive = [rank.attempt for rank in event.ranks if rank.attempt < state.attempt and rank.status is None]
    leftovers = (act.ClearNode(node=event.node, attempt=max(alive)),) if alive else ()
    state, actions = _reconcile(state, event)
    asked = {
        rank
        for action in actions
        if isinstance(action, act.SpawnRanks) and action.node == event.node and action.attempt == state.attempt
        for rank in action.ranks
    }
    state, more = _resume(state, event, asked)
    return state, leftovers + actions + more


def _reconcile(state: st.RunState, event: ev.NodeConnected) -> Step:
    """Notes ranks of this attempt that started, ended or vanished while the link was down."""
    actions: tuple[AnyAction, ...] = ()
    node = state.node(event.node)
    attempt = state.attempt
    known = {
        rank.rank: rank
        for rank in event.ranks
        if rank.attempt == attempt and rank.rank in node.ranks and rank.generation == state.generation_of(rank.rank)
    }
    for rank in node.ranks:
        generation = state.generation_of(rank)
        phase, said = state.ranks[rank], known.get(rank)
        news: list[RankEvent] = []
        if isinstance(phase, st.Pending) and said is not None:
            news.append(ev.RankSpawned(at=event.at, attempt=attempt, rank=rank, pid=said.pid, generation=generation))
        if isinstance(phase, st.Pending | st.Alive) and said is not None and said.status is not None:
            ended = ev.RankEnded(at=event.at, attempt=attempt, rank=rank, status=said.status, generation=generation)
            news.append(ended)
        if isinstance(phase, st.Alive) and said is None:
            why = f"the agent on {node.name} does not know it"
            news.append(ev.RankLost(at=event.at, attempt=attempt, rank=rank, reason=why, generation=generation))
        for item in news:
            state, more = _learn(state, item)
            actions += more
    return state, actions


def _learn(state: st.RunState, event: RankEvent) -> Step:
    """Handles an event that follows from another one. Earlier ones may have made it outdated."""
    if reason := outdated(state, event):
        return ignore(state, reason)
    match event:
        case ev.RankSpawned():
            return rank_spawned(state, event)
        case ev.RankEnded():
            return rank_ended(state, event)
        case ev.RankLost():
            return rank_lost(state, event)


def _resume(state: st.RunState, event: ev.NodeConnected, asked: set[int]) -> Step:
    """Sends a connected node the requests of the phase. Ranks in `asked` were requested already."""
    name = event.node
    node = state.node(name)
    match state.phase:
        case st.Opening():
            return when_opened(state, event.at)
        case st.Starting():
            if state.store_port is None:
                is_complete = len(up_nodes(state)) == len(state.nodes)
                head = state.nodes[0].name
                return state, (act.OpenStore(node=head, attempt=state.attempt),) if is_complete else ()
            return state, tell_again(state, node) + spawn(state, node, set(node.ranks) - asked)
        case st.Running() | st.Holding():
            return state, tell_again(state, node) + spawn(state, node, set(node.ranks) - asked)
        case st.Stopping(at_once=at_once):
            return state, (act.StopRanks(node=name, attempt=state.attempt, at_once=at_once),)
        case st.Clearing():
            return state, () if node.cleared else (act.ClearNode(node=name, attempt=state.attempt),)
        case st.Closing() | st.Ended():
            return state, (act.CloseNode(node=name),)


def node_disconnected(state: st.RunState, event: ev.NodeDisconnected) -> Step:
    match state.phase:
        case st.Ended():
            return ignore(state, "the run has ended")
        case st.Opening() | st.Starting() | st.Running() | st.Holding() | st.Stopping() | st.Clearing() | st.Closing():
            node = state.node(event.node)
            if node.link in ("closed", "given-up"):
                return ignore(state, f"{event.node} is {node.link}")
            state = set_node(state, event.node, link="down", reason=event.reason, since=event.at)
            patience = UNREACHABLE_PATIENCE if is_ending(state) or isinstance(state.phase, st.Opening) else None
            return state, (act.OpenNode(node=event.node, patience=patience),)


def shown_event(state: st.RunState, event: Fact) -> Step:
    """Notes facts that decide nothing: a warning about a node, the imports of its template or of rank 0, where checkpoints are written."""
    match state.phase:
        case st.Ended():
            return ignore(state, "the run has ended")
        case st.Opening() | st.Starting() | st.Running() | st.Holding() | st.Stopping() | st.Clearing() | st.Closing():
            after = _with_note(state, event)
            return (after, ()) if after != state else ignore(state, "that is known")


def _with_note(state: st.RunState, event: Fact) -> st.RunState:
    match event:
        case ev.NodeWarned():
            warnings = state.node(event.node).warnings
            text = f"{event.check}: {event.text}"
            return state if text in warnings else set_node(state, event.node, warnings=(*warnings, text))
        case ev.ModulesImported():
            return set_node(state, event.node, imports=event.modules)
        case ev.ScriptImported():
            return replace(state, imports=event.modules)
        case ev.CheckpointFolderSeen(folder=folder):
            return state if folder in state.folders else replace(state, folders=(*state.folders, folder)[-8:])


def node_given_up(state: st.RunState, event: ev.NodeGivenUp) -> Step:
    """Counts the ranks of the node as lost. If there is a spare node, they rejoin there, or the run ends here and all ranks start again."""
    if isinstance(state.phase, st.Ended):
        return ignore(state, "the run has ended")
    if (moved := _rejoin_on_spare(state, event)) is not None:
        return moved
    ends: tuple[AnyAction, ...] = ()
    state = set_node(state, event.node, link="given-up", reason=event.reason, since=event.at)
    if state.spare_nodes:
        state, ends = stop_requested(state, ev.StopRequested(at=event.at, by=f"the loss of {event.node}", again=True))
    state, actions = _lose_ranks(state, event)
    return state, tuple(one for one in ends if not isinstance(one, act.Ignore)) + actions


def _rejoin_on_spare(state: st.RunState, event: ev.NodeGivenUp) -> Step | None:
    """Replaces a lost node by a spare one, where its ranks rejoin. Returns None if they can't."""
    is_on = isinstance(state.phase, st.Starting | st.Running | st.Holding)
    if not is_on or not state.spare_names or event.node == state.nodes[0].name:
        return None
    name, *others = state.spare_names
    for rank in state.node(event.node).ranks:
        if isinstance(phase := state.ranks[rank], st.Pending | st.Alive):
            pid, order = phase.pid if isinstance(phase, st.Alive) else None, state.ends
            gone = st.Gone(pid=pid, reason=event.reason, at=event.at, order=order, asked=False)
            state = replace(set_rank(state, rank, gone), ends=order + 1)
    nodes = tuple(
        st.Node(name=name, ranks=one.ranks, since=event.at) if one.name == event.node else one for one in state.nodes
    )
    state = replace(state, nodes=nodes, spare_nodes=state.spare_nodes - 1, spare_names=tuple(others))
    if why_no_rejoin(state):
        return None
    state, told = tell(state, ("lost", state.generation))
    state, actions = rejoin(state, event.at)
    return state, (act.OpenNode(node=name), *told, *actions)


def _lose_ranks(state: st.RunState, event: ev.NodeGivenUp) -> Step:
    match state.phase:
        case st.Ended():
            return state, ()
        case st.Opening():
            return when_opened(state, event.at)
        case st.Starting() | st.Running() | st.Holding() | st.Stopping():
            node = state.node(event.node)
            actions: tuple[AnyAction, ...] = ()
            attempt = state.attempt  # the loss of the last rank may start the next attempt
            for rank in node.ranks:
                generation = state.generation_of(rank)
                lost = ev.RankLost(at=event.at, attempt=attempt, rank=rank, reason=event.reason, generation=generation)
                state, more = _learn(state, lost)
                actions += more
            return state, actions
        case st.Clearing():
            return when_cleared(state, (), event.at)
        case st.Closing():
            return when_closed(state, (), event.at)


def job_ended(state: st.RunState, event: ev.JobEnded) -> Step:
    """Ends the run at once: no agent can be asked any more. A run that was being stopped counts as stopped."""
    match state.phase:
        case st.Ended(outcome=st.Outcome(word="queued")):
            outcome, is_asked = st.Outcome(word="failed", reason=event.reason, job_ended=True), True
        case st.Ended():
            return ignore(state, "the run has ended")
        case (
            st.Stopping(then=st.Outcome() as outcome)
            | st.Clearing(then=st.Outcome() as outcome)
            | st.Closing(outcome=outcome)
        ):
            outcome, is_asked = replace(outcome, reason=event.reason) if outcome.job_ended else outcome, True
        case st.Opening() | st.Starting() | st.Running() | st.Holding() | st.Stopping() | st.Clearing():
            outcome, is_asked = st.Outcome(word="failed", reason=event.reason, job_ended=True), False
    gone = sum(isinstance(rank, st.Alive) for rank in state.ranks)
    orders = iter(range(state.ends, state.ends + gone))
    ranks = tuple(
        st.Gone(pid=rank.pid, reason=event.reason, at=event.at, order=next(orders), asked=is_asked)
        if isinstance(rank, st.Alive)
        else rank
        for rank in state.ranks
    )
    nodes = tuple(replace(node, link="given-up", reason=event.reason, since=event.at) for node in state.nodes)
    phase = st.Ended(outcome=outcome, at=event.at)
    return replace(state, phase=phase, ranks=ranks, nodes=nodes, ends=state.ends + gone), ()


def run_queued(state: st.RunState, event: ev.RunQueued) -> Step:
    """Lets a run that has ended wait for another job."""
    match state.phase:
        case st.Ended(outcome=st.Outcome(word="queued")):
            return ignore(state, "the run waits for a job already")
        case st.Ended():
            outcome = st.Outcome(word="queued", reason=f"restarted by {event.by}")
            return replace(state, phase=st.Ended(outcome=outcome, at=event.at)), ()
        case st.Opening() | st.Starting() | st.Running() | st.Holding() | st.Stopping() | st.Clearing() | st.Closing():
            return ignore(state, "the run has not ended")


def job_ending(state: st.RunState, event: ev.JobEnding) -> Step:
    """Stops the ranks, and then waits for `JobEnded`, which tells why."""
    outcome = st.Outcome(word="failed", reason=event.reason, job_ended=True)
    match state.phase:
        case st.Starting() | st.Running() | st.Holding():
            return stop(state, outcome, event.at)
        case (
            st.Stopping(then=st.Restart() | st.Outcome(by_job=True))
            | st.Clearing(then=st.Restart() | st.Outcome(by_job=True)) as phase
        ):
            return replace(state, phase=replace(phase, then=outcome)), ()
        case st.Opening() | st.Stopping() | st.Clearing() | st.Closing() | st.Ended():
            return ignore(state, "the run is ending, or has no ranks")


def run_continued(state: st.RunState, event: ev.RunContinued) -> Step:
    """Starts the next attempt on the nodes of another job, or on others of the same job."""
    if not isinstance(state.phase, st.Ended) or state.phase.outcome.word != "queued":
        return ignore(state, "the run does not wait for a job")
    ranks = sorted(rank for _, ranks in event.nodes for rank in ranks)
    if ranks != list(range(len(state.ranks))):
        return ignore(state, f"the run has {len(state.ranks)} ranks, and the job {len(ranks)}")
    nodes = tuple(st.Node(name=name, ranks=own, link="closed", since=event.at) for name, own in event.nodes)
    spare = {"spare_nodes": event.spare_nodes, "spare_names": event.spare_names}
    fresh = replace(state, phase=st.Opening(), nodes=nodes, restarts=0, failed_at=None, **spare)
    return next_attempt(fresh, event.at)


def node_cleared(state: st.RunState, event: ev.NodeCleared) -> Step:
    """Goes on once all nodes are cleared."""
    match state.phase:
        case st.Clearing():
            if any(node.name == event.node and node.cleared for node in state.nodes):
                return ignore(state, f"{event.node} is cleared already")
            return when_cleared(set_node(state, event.node, cleared=True, abandoned=event.abandoned), (), event.at)
        case st.Opening() | st.Starting() | st.Running() | st.Holding() | st.Stopping() | st.Closing() | st.Ended():
            return ignore(state, "the node was not being cleared")


def node_closed(state: st.RunState, event: ev.NodeClosed) -> Step:
    """Ends the run once all agents have ended. An agent that ended unexpectedly is opened again."""
    match state.phase:
        case st.Closing():
            return when_closed(set_node(state, event.node, link="closed", since=event.at), (), event.at)
        case st.Opening() | st.Starting() | st.Running() | st.Holding() | st.Stopping() | st.Clearing():
            return node_disconnected(state, ev.NodeDisconnected(at=event.at, node=event.node, reason="its agent ended"))
        case st.Ended():
            return ignore(state, "the run has ended")
