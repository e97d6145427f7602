"""The state of a run, and values derived from it. Only `machine.step` changes it."""

import signal
from typing import Literal

import msgspec

from engine.core.run.events import CheckpointsFound, FallbackBackend, HealthNoticed

RankWord = Literal["starting", "running", "exited", "failed", "lost", "stopped"]
RunWord = Literal["queued", "starting", "running", "holding", "succeeded", "failed", "stopped"]
ListedWord = RunWord | Literal["unreadable"]  # states of runs in lists
RestartKind = Literal["none", "rejoin", "attempt"]  # kinds of restart: none, start the dead ranks, or start all ranks

CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals that a process causes by its own fault."""

ENDED_WORDS: frozenset[RunWord] = frozenset({"succeeded", "failed", "stopped"})


class Value(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A value of the state: compared by content, never changed in place."""


# --- one rank of the current attempt ---------------------------------------------------------------------------------


class Pending(Value, frozen=True, kw_only=True):
    """Not started yet."""


class Alive(Value, frozen=True, kw_only=True):
    """Its process exists."""

    pid: int
    since: float


class Done(Value, frozen=True, kw_only=True):
    """Its process ended. `asked`: it was told to stop. `order`: counts the ends in the order in which the supervisor noticed
    them. `setup_error`: why its process group could not be set up, if it ended before that. `no_retry`, `place`: see `RankEnded`."""

    pid: int | None
    status: int
    at: float
    order: int
    asked: bool
    step: int | None
    reason: str
    secondary: bool
    by: str = ""
    setup_error: str = ""
    no_retry: str = ""
    place: str = ""


class Gone(Value, frozen=True, kw_only=True):
    """It ended for an unknown reason. `asked`: the attempt was being stopped. `step`: the last one that is known."""

    pid: int | None
    reason: str
    at: float
    order: int
    asked: bool
    step: int | None = None


RankPhase = Pending | Alive | Done | Gone


# --- one node --------------------------------------------------------------------------------------------------------


class Node(Value, frozen=True, kw_only=True):
    """A node, its ranks and the link to its agent."""

    name: str
    ranks: tuple[int, ...]
    link: Literal["down", "up", "closed", "given-up"] = "down"
    reason: str = ""
    since: float = 0.0
    was_up: bool = False  # Whether its agent ever answered. If so, a node that is given up may still have processes.
    cleared: bool = False
    warnings: tuple[str, ...] = ()  # findings that will make ranks fail there, or may
    imports: tuple[tuple[str, float], ...] = ()  # modules that its template has imported, and their seconds
    abandoned: tuple[int, ...] = ()


# --- the run ---------------------------------------------------------------------------------------------------------


class Outcome(Value, frozen=True, kw_only=True):
    """How a run ended, or will end once its nodes are cleared. `queued`: another job will continue it."""

    word: Literal["succeeded", "failed", "stopped", "queued"]
    reason: str
    job_ended: bool = False  # whether the run ended because its job did
    by_job: bool = False  # whether a signal in the job has stopped it, and the job may be ending or beginning again
    is_early: bool = False  # whether `metrics.stop_when` has stopped it
    no_restart: str = ""  # why no restart followed that `launch.on_failure` asks for: the run would fail again


class Restart(Value, frozen=True, kw_only=True):
    """A new attempt follows once the nodes are cleared. `falls_back`: with the next backend."""

    reason: str
    falls_back: bool = False


class Opening(Value, frozen=True, kw_only=True):
    """Waiting for the nodes' agents."""


class Starting(Value, frozen=True, kw_only=True):
    """Waiting for the store, then for every rank's process."""


class Running(Value, frozen=True, kw_only=True):
    """Every rank was started and none has failed."""


class Holding(Value, frozen=True, kw_only=True):
    """A rank failed. The others keep running until a user decides."""

    since: float = 0.0  # seconds since the epoch


class Stopping(Value, frozen=True, kw_only=True):
    """Ranks are being stopped by the stop ladder. `at_once`: by its last step only. `cause`: the failure with which the reason of what
    follows begins, in words; empty: no failure."""

    then: Outcome | Restart
    at_once: bool = False
    cause: str = ""


class Clearing(Value, frozen=True, kw_only=True):
    """Every rank has ended; processes that they left are being ended."""

    then: Outcome | Restart


class Closing(Value, frozen=True, kw_only=True):
    """The agents are being ended."""

    outcome: Outcome


class Ended(Value, frozen=True, kw_only=True):
    """Nothing of the run is left on any node."""

    outcome: Outcome
    at: float


Phase = Opening | Starting | Running | Holding | Stopping | Clearing | Closing | Ended


SpanKind = Literal["starting", "running", "held", "ending", "away"]  # away: it has ended, or left a job


class Span(Value, frozen=True, kw_only=True):
    """A part of the run's time, which lasts until the next one begins."""

    kind: SpanKind
    begin: float  # seconds since the epoch
    attempt: int
    generation: int


RankNews = tuple[Literal["lost", "generation"], int]  # a generation has lost a rank, or begins


class RunState(Value, frozen=True, kw_only=True):
    """The whole state of a run. `restarts`: automatic restarts since a user's last restart."""

    run: str
    name: str
    on_failure: str
    max_restarts: int
    launched_at: float
    phase: Phase
    nodes: tuple[Node, ...]
    ranks: tuple[RankPhase, ...]
    attempt: int = 0
    attempt_since: float = 0.0
    store_port: int | None = None
    store_address: str = ""
    interfaces: tuple[tuple[str, str], ...] = ()  # the network interface of each node to the others: `(node, name)`
    store_trouble: str = ""  # how the store of this attempt was lost, and the next step; empty: it was not
    spare_nodes: int = 0  # nodes on which the run may go on if one of `nodes` is lost
    spare_names: tuple[str, ...] = ()  # the names of those spare nodes on which dead ranks can rejoin
    restarts: int = 0
    restart_when: str = "may_heal"  # `always`, or only if the cause `may_heal`: `launch.restart_when`
    failed_at: tuple[str, int | None] | None = None
    """Where the last failure raised its exception, and the last step of its rank; None: it raised none, or a user has restarted the run."""
    failed_in: int = 0  # the attempt of the last failure
    free_rejoins: int = 0  # rejoins that did not count as restarts, since all ranks were last joined
    ends: int = 0
    generation: int = 0  # number of the process group in this attempt: each rejoin makes a new one
    generation_since: float = 0.0
    started_for: tuple[int, ...] = ()  # each rank's generation at its start; empty: the first one for all
    joined: frozenset[int] = frozenset()  # ranks in the current generation, by `rankdeck.elastic`
    without_state: frozenset[int] = frozenset()  # new processes to which no generation has given the state yet
    waits_in: tuple[int, ...] = ()
    """The generation in which each rank waits, by its newest report; -1: it does not wait, or has reported nothing. Empty: none has."""
    elastic: bool = False  # whether any rank of this attempt has reported that it joined
    start_together: str = ""  # why ranks can only start together; empty: one may start alone
    over: str = ""  # the backend over which ranks go on since one of them has come back; empty: that of the attempt
    backend: str = ""  # of this attempt
    fallback: tuple[FallbackBackend, ...] = ()  # backends to fall back on that were not tried yet
    news: tuple[RankNews, ...] = ()  # news that the ranks of this attempt were told, in order
    late: HealthNoticed | None = None  # the newest notice of this attempt about ranks that others wait for
    notices: int = 0  # lines of the story about the ranks' health
    told_at: float = 0.0  # when the ranks of this attempt were told to stop; 0: they were not
    folders: tuple[str, ...] = ()  # where ranks were seen to write checkpoints, the newest eight
    saved: CheckpointsFound | None = None  # what this attempt, which is over, has left on the disk; None: unknown
    imports: tuple[tuple[str, float], ...] = ()  # modules that rank 0 has imported itself, and their seconds
    spans: tuple[Span, ...] = ()  # its time so far; `step` adds to them

    def generation_of(self, rank: int) -> int:
        return self.started_for[rank] if self.started_for else 0

    def waits_of(self, rank: int) -> int:
        return self.waits_in[rank] if self.waits_in else -1

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def node_of(self, rank: int) -> Node:
        return next(node for node in self.nodes if rank in node.ranks)


def rank_word(phase: RankPhase) -> RankWord:
    """A rank's state as users and scripts read it."""
    match phase:
        case Pending():
            return "starting"
        case Alive():
            return "running"
        case Done(asked=True) | Gone(asked=True):
            return "stopped"
        case Done(status=0):
            return "exited"
        case Done():
            return "failed"
        case Gone():
            return "lost"


def run_word(state: RunState) -> RunWord:
    """The run's state as users and scripts read it."""
    match state.phase:
        case Opening() | Starting():
            return "starting"
        case Holding():
            return "holding"
        case Stopping(then=Restart()) | Clearing(then=Restart()):
            return "starting"
        case Running() | Stopping() | Clearing() | Closing():
            return "running"
        case Ended(outcome=outcome):
            return outcome.word


_SPANS: dict[type[Phase], SpanKind] = {
    Opening: "starting", Starting: "starting", Running: "running", Holding: "held",
    Stopping: "ending", Clearing: "ending", Closing: "ending", Ended: "away",
}  # fmt: skip


def with_span(state: RunState, at: float) -> RunState:
    """The state with another span, if one begins at `at`."""
    kind, attempt, generation = _SPANS[type(state.phase)], state.attempt, state.generation
    last = state.spans[-1] if state.spans else None
    if last is not None and (last.kind, last.attempt, last.generation) == (kind, attempt, generation):
        return state
    begin = at if last is None else max(at, last.begin)
    span = Span(kind=kind, begin=begin, attempt=attempt, generation=generation)
    return msgspec.structs.replace(state, spans=(*state.spans, span))


def waits_for_job(state: RunState) -> bool:
    """Whether the run has left one job and another will continue it."""
    return isinstance(state.phase, Ended) and state.phase.outcome.word == "queued"


def ends_with_job(state: RunState) -> bool:
    """Whether the run is ending because Slurm ends its job; its last state is known once the job is over."""
    match state.phase:
        case Stopping(then=Outcome(job_ended=True)) | Clearing(then=Outcome(job_ended=True)):
            return True
        case Closing(outcome=outcome):
            return outcome.job_ended
        case _:
            return False


def finished(state: RunState) -> list[int]:
    """The ranks that ended by themselves with status 0."""
    return [rank for rank, phase in enumerate(state.ranks) if rank_word(phase) == "exited"]


def root_cause(state: RunState) -> tuple[int, Done | Gone] | None:
    """The rank whose failure explains the others: the first that the supervisor learned of, secondary errors last."""
    failed = [(rank, phase) for rank, phase in enumerate(state.ranks) if rank_word(phase) in ("failed", "lost")]
    ends = [
        (isinstance(phase, Done) and phase.secondary, phase.order, rank, phase)
        for rank, phase in failed
        if isinstance(phase, Done | Gone)
    ]
    if not ends:
        return None
    _, _, rank, phase = min(ends, key=lambda end: end[:3])
    return rank, phase


def cause_words(rank: int, phase: Done | Gone) -> str:
    """The failure of a rank in a few words: `rank 2: exit 1`."""
    return f"rank {rank}: {status_words(phase.status) if isinstance(phase, Done) else 'lost'}"


def status_words(status: int) -> str:
    """An exit status in words: `exit 3`, `SIGKILL`."""
    if status >= 0:
        return f"exit {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
