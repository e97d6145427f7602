"""Everything that can happen to a run. The journal is a list of these events; replaying it gives the state. Names are past tense. `at` is
wall-clock time in seconds since the epoch, set by the process that saw the event. Events of an attempt carry its number, so that late
events of an earlier attempt are recognised and ignored."""

from typing import Literal

import msgspec

Scope = Literal["smallest", "all"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Something that happened, at a time."""

    at: float


class NodeEvent(Event, frozen=True, kw_only=True):
    """Something that happened to a node."""

    node: str


class AttemptEvent(Event, frozen=True, kw_only=True):
    """Something that happened in an attempt."""

    attempt: int


class RankEvent(AttemptEvent, frozen=True, kw_only=True):
    """Something that happened to a rank of an attempt."""

    rank: int


class ProcessEvent(RankEvent, frozen=True, kw_only=True):
    """Something that happened to a process of a rank. `generation`: the generation that the rank was started for; above 0 if it replaces a
    dead rank."""

    generation: int = 0


class FallbackBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend to use if ranks can't set up their process group. `start_together`: see `RunLaunched`."""

    backend: str
    start_together: str = ""


class RunLaunched(Event, frozen=True, kw_only=True):
    """A user asked for this run. The first line of every journal."""

    run: str
    name: str
    nodes: tuple[tuple[str, tuple[int, ...]], ...]
    on_failure: str
    max_restarts: int
    restart_when: str = "may_heal"  # `always`, or only if the cause `may_heal`: `launch.restart_when`
    start_together: str = ""  # why ranks can only start together, if the backend requires it
    python: str = ""  # the Python of ranks; empty: they run another program
    backend: str = ""
    backend_note: str = ""  # why rankdeck chose the backend, if the profile leaves the choice open
    backend_is_auto: bool = False  # whether the profile says `auto`; otherwise the backend is a fallback
    fallback: tuple[FallbackBackend, ...] = ()  # in the order in which they are tried
    spare_nodes: int = 0  # nodes of the job besides
    spare_names: tuple[str, ...] = ()  # their names, where dead ranks can rejoin


class SupervisorStarted(Event, frozen=True, kw_only=True):
    """A new supervisor took the run over; no node is connected to it yet."""

    pid: int


class KnownRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that an agent has started; the rank is alive while `status` is None."""

    attempt: int
    rank: int
    pid: int
    status: int | None = None
    generation: int = 0


class NodeConnected(NodeEvent, frozen=True, kw_only=True):
    """The link to a node's agent is up; `ranks` is all that the agent knows."""

    agent_pid: int
    ranks: tuple[KnownRank, ...] = ()


class NodeDisconnected(NodeEvent, frozen=True, kw_only=True):
    """The link to a node's agent broke. The ranks there keep running."""

    reason: str


class NodeGivenUp(NodeEvent, frozen=True, kw_only=True):
    """A node can't be reached or can't start an agent, and trying again is pointless."""

    reason: str


class JobEnded(Event, frozen=True, kw_only=True):
    """The job of a batch system that has all nodes of the run is over, and with it every process there."""

    reason: str


class RunQueued(Event, frozen=True, kw_only=True):
    """Another job of a batch system will continue a run that has ended. `job`: its number. `by`: who has asked for it."""

    job: str
    by: str


class JobEnding(Event, frozen=True, kw_only=True):
    """The batch system ends the job, and has told the ranks so: they have a moment to save, and their ends are no failures."""

    reason: str


class RunContinued(Event, frozen=True, kw_only=True):
    """Another job of a batch system, or other nodes of the same job, continue the run as its next attempt. `nodes` and those to spare: as in
    `RunLaunched`; `job`: its number."""

    job: str
    nodes: tuple[tuple[str, tuple[int, ...]], ...]
    spare_nodes: int = 0
    spare_names: tuple[str, ...] = ()


class NodeWarned(NodeEvent, frozen=True, kw_only=True):
    """Something on a node will make ranks fail, or may. `check`: name of the check, as in `rankdeck check`. `text`: the finding and the
    next step. `fails`: whether ranks will surely fail."""

    check: str
    text: str
    fails: bool


class ModulesImported(NodeEvent, frozen=True, kw_only=True):
    """The template of a node has imported these modules, with the seconds of each, and forks ranks. `earlier`: they were imported before
    the launch, by a standby, so that nothing waited for them."""

    modules: tuple[tuple[str, float], ...]
    earlier: bool = False


class ScriptImported(AttemptEvent, frozen=True, kw_only=True):
    """Rank 0 has imported these modules itself before its process group was made, with the seconds of each. `preload`: value of
    `launch.preload` with which the next launch shares them; empty: nothing would be gained."""

    modules: tuple[tuple[str, float], ...]
    preload: tuple[str, ...] = ()


class NodeCleared(AttemptEvent, frozen=True, kw_only=True):
    """An agent has ended all processes of this attempt, except those in `abandoned`, which it could not kill."""

    node: str
    abandoned: tuple[int, ...] = ()


class NodeClosed(NodeEvent, frozen=True, kw_only=True):
    """The agent of a node has ended, with everything that it started."""


class StoreOpened(AttemptEvent, frozen=True, kw_only=True):
    """The store of an attempt listens. `address`: where all other nodes reach the store's node. `interfaces`: the network interface that
    each node uses for that, as `(node, name)`; empty if all ranks are on this machine."""

    node: str
    port: int
    address: str = "127.0.0.1"
    interfaces: tuple[tuple[str, str], ...] = ()


class StoreLost(AttemptEvent, frozen=True, kw_only=True):
    """The store of an attempt ended, or could not be opened. `reason`: why, with the last line of the store's output. `status`: exit status
    of its process; None: unknown. `advice`: the next step."""

    reason: str
    status: int | None = None
    advice: str = ""


class StoreMissed(AttemptEvent, frozen=True, kw_only=True):
    """Ranks wait for a store that is gone."""

    ranks: tuple[int, ...]


class RankSpawned(ProcessEvent, frozen=True, kw_only=True):
    """A rank's process exists."""

    pid: int


class RankJoined(RankEvent, frozen=True, kw_only=True):
    """A rank that can rejoin (its script uses `rankdeck.elastic`) has joined a generation, with `step` steps done."""

    generation: int
    step: int | None = None
    over: str = ""  # the backend of its process group, if it is not that of the run


class RankWaiting(RankEvent, frozen=True, kw_only=True):
    """A rank that can rejoin waits in a generation: for the others to join it, or for the next one to begin."""

    generation: int


class RejoinOverdue(AttemptEvent, frozen=True, kw_only=True):
    """The ranks of an attempt have not met in a generation within the limit that `rejoin.patience` gives."""

    generation: int


class RankEnded(ProcessEvent, frozen=True, kw_only=True):
    """A rank's process ended.

    `status`: the exit code, or minus the signal's number, as in `subprocess`. `step`: the last step that the rank reported.
    `reason`: what the status can't express, for example why the rank could not be started. `secondary`: its last output blames
    another rank ("connection closed by peer"), so it is not the root cause while another failure is known. `by`: the user whose
    signal ended it. `setup_error`: why its process group could not be set up, if it ended before that. `by_itself`: it was ending
    before its agent told it to stop. `no_retry`: why the same run would fail again, if its cause is certain and does not heal.
    `place`: where its exception was raised, the same text for the same place.
    """

    status: int
    step: int | None = None
    reason: str = ""
    secondary: bool = False
    by: str = ""
    setup_error: str = ""
    by_itself: bool = False
    no_retry: str = ""
    place: str = ""


class RankLost(ProcessEvent, frozen=True, kw_only=True):
    """A rank is gone for an unknown reason, after this step. If it is `alive`, its process could not be killed."""

    reason: str
    alive: bool = False
    step: int | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder from which a training can continue. `at`: when it was written last, seconds since the epoch; `step`: as its name or the
    script says; `size`: bytes; 0: unknown."""

    name: str
    at: float
    step: int | None = None
    size: int = 0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints at the end of an attempt. `told_at`: when its ranks were told to stop, seconds since the epoch; 0: they were not.
    `newest`: the newest whole one. `torn`: one that was being written; `lack`: what it lacks; `moved`: its new name, if it was set aside."""

    told_at: float = 0.0
    newest: Checkpoint | None = None
    torn: Checkpoint | None = None
    lack: str = ""
    moved: str = ""


class CheckpointsFound(AttemptEvent, frozen=True, kw_only=True):
    """Checkpoints of this run, after an attempt that did not succeed. `step`: the last that a rank has reported."""

    found: Found
    step: int | None = None


class CheckpointFolderSeen(AttemptEvent, frozen=True, kw_only=True):
    """A rank writes checkpoints in this folder."""

    folder: str


class HoldOverdue(AttemptEvent, frozen=True, kw_only=True):
    """The run has held for `seconds`, which is `launch.hold_for`."""

    seconds: float


Policy = Literal["ignore", "hold", "stop", "finish"]


class HealthNoticed(AttemptEvent, frozen=True, kw_only=True):
    """Ranks hang, lag or go on, or a curve goes wrong. `kind`: one of `metrics.health.Kind`, or `waits`, `early` (collectives) or
    `early-stop`. `policy`: what follows: `launch.on_nan` if the loss of a rank is not finite; `finish` if `metrics.stop_when` stops the run."""

    kind: str
    ranks: tuple[int, ...]
    text: str
    policy: Policy = "ignore"


class StopRequested(Event, frozen=True, kw_only=True):
    """A user wants the run to end. `at_once` skips to SIGKILL. `again`: another job will continue it. `by_job`: a signal that a command got in the
    job of the run: it may come from the batch system, which ends the job."""

    by: str
    at_once: bool = False
    again: bool = False
    by_job: bool = False


class RestartRequested(Event, frozen=True, kw_only=True):
    """A user asks for a restart. `scope`: `all` is a new attempt of all ranks; `smallest` starts only the dead ranks if that is possible.
    `attempt` and `generation`: numbers that the user saw, or None. A request about an earlier one is refused: it could end a healthy run."""

    by: str
    scope: Scope = "smallest"
    attempt: int | None = None
    generation: int | None = None


class KillRequested(Event, frozen=True, kw_only=True):
    """A user sends a signal to one rank. `pid`: the process that the user saw, or None. If another process has replaced it, the request
    is refused."""

    by: str
    rank: int
    signal: int
    pid: int | None = None


_OfNodes = NodeConnected | NodeDisconnected | NodeGivenUp | NodeWarned | NodeCleared | NodeClosed
_OfJobs = JobEnded | RunQueued | JobEnding | RunContinued
_OfStores = StoreOpened | StoreLost | StoreMissed
_OfRanks = (
    ModulesImported | ScriptImported | RankSpawned | RankWaiting | RankJoined | RejoinOverdue | RankEnded | RankLost
)
_OfTraining = CheckpointsFound | CheckpointFolderSeen | HoldOverdue | HealthNoticed
_OfUsers = StopRequested | RestartRequested | KillRequested
AnyEvent = RunLaunched | SupervisorStarted | _OfNodes | _OfJobs | _OfStores | _OfRanks | _OfTraining | _OfUsers
"""Every event; the tag `event` tells which one a journal line holds."""

INTENTS = (RunLaunched, StopRequested, RestartRequested, KillRequested)
"""Requests of users. They are on the disk before the supervisor acts on them."""
