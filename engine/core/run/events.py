"""Everything that can happen to a run. The journal is a list of these, and replaying it gives the state.

Names are past tense. `at` is wall-clock time in seconds since the epoch, put in by whoever saw it happen. Events that
belong to one attempt carry its number, so that a late one can't be mistaken for news (fencing).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Scope = Literal["smallest", "all"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Something that happened, at a time."""

    at: float


class Spare(msgspec.Struct, frozen=True, kw_only=True):
    """A backend that takes over where ranks can't set their process group up. `one_fate`: as of `RunLaunched`."""

    backend: str
    one_fate: str = ""


class RunLaunched(Event, frozen=True, kw_only=True):
    """A user asked for this run. The first line of every journal."""

    run: str
    name: str
    nodes: tuple[tuple[str, tuple[int, ...]], ...]
    on_failure: str
    max_restarts: int
    one_fate: str = ""
    """Why ranks can only start together, where the backend wants that."""
    backend: str = ""
    backend_note: str = ""
    """Why it is that backend, where the profile did not decide it alone."""
    spares: tuple[Spare, ...] = ()
    """In the order in which they are tried."""


class SupervisorStarted(Event, frozen=True, kw_only=True):
    """A new supervisor took the run over; no node is connected to it yet."""

    pid: int


class KnownRank(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent says of a rank that it has or had: alive while `status` is None."""

    attempt: int
    rank: int
    pid: int
    status: int | None = None
    generation: int = 0


class NodeConnected(Event, frozen=True, kw_only=True):
    """The link to a node's agent is up; `ranks` is all that the agent knows."""

    node: str
    agent_pid: int
    ranks: tuple[KnownRank, ...] = ()


class NodeDisconnected(Event, frozen=True, kw_only=True):
    """The link to a node's agent broke. Its ranks go on."""

    node: str
    reason: str


class NodeGivenUp(Event, frozen=True, kw_only=True):
    """A node can't be reached or can't start an agent, and trying again is pointless."""

    node: str
    reason: str


class NodeWarned(Event, frozen=True, kw_only=True):
    """Something on a node will make ranks fail, or may.

    Args:
        check: what was looked at, as `rankdeck check` calls it.
        text: what was found, and the next step.
        fails: whether it is certain.
    """

    node: str
    check: str
    text: str
    fails: bool


class NodeCleared(Event, frozen=True, kw_only=True):
    """An agent has no process of this attempt left, or says which ones it could not kill."""

    attempt: int
    node: str
    abandoned: tuple[int, ...] = ()


class NodeClosed(Event, frozen=True, kw_only=True):
    """The agent of a node has ended, with everything that it started."""

    node: str


class StoreOpened(Event, frozen=True, kw_only=True):
    """The store of an attempt listens.

    `address`: of its node, as all others reach it. `interfaces`: by which each node does, `(node, name)`; those of this machine
    alone have none.
    """

    attempt: int
    node: str
    port: int
    address: str = "127.0.0.1"
    interfaces: tuple[tuple[str, str], ...] = ()


class StoreLost(Event, frozen=True, kw_only=True):
    """The store of an attempt ended while ranks may need it."""

    attempt: int
    reason: str


class RankSpawned(Event, frozen=True, kw_only=True):
    """A rank's process exists. `generation`: the one that it was started for, above 0 where it takes a dead rank's place."""

    attempt: int
    rank: int
    pid: int
    generation: int = 0


class RankJoined(Event, frozen=True, kw_only=True):
    """A rank that can rejoin (its script uses `rankdeck.elastic`) is in a generation, with `step` steps finished."""

    attempt: int
    rank: int
    generation: int
    step: int | None = None


class RankEnded(Event, frozen=True, kw_only=True):
    """A rank's process ended.

    `status` is as `subprocess` has it: the exit code, or minus the signal's number. `step` is the last step that the rank
    reported, `reason` says more than the status can (it could not be started, for one). `secondary`: its last words blame
    another rank ("connection closed by peer"), so it is not the root cause while any other failure is known. `by`: the user
    who sent it the signal that ended it. `forming`: what it said of why its process group could not be set up, where it ended
    before that was.
    """

    attempt: int
    rank: int
    status: int
    step: int | None = None
    reason: str = ""
    secondary: bool = False
    by: str = ""
    forming: str = ""
    generation: int = 0


class RankLost(Event, frozen=True, kw_only=True):
    """A rank is gone and nobody can say how it ended; or, where it is `alive`, nothing can end it."""

    attempt: int
    rank: int
    reason: str
    alive: bool = False
    generation: int = 0


class StopRequested(Event, frozen=True, kw_only=True):
    """A user wants the run to end. `at_once` skips to SIGKILL."""

    by: str
    at_once: bool = False


class RestartRequested(Event, frozen=True, kw_only=True):
    """A user wants the run to go on.

    `scope`: `all` is a new attempt of all ranks; `smallest` starts only the dead ranks if that is possible. `attempt` and
    `generation`: those that the user saw, or None. A request about an earlier one is refused: it could end a healthy run.
    """

    by: str
    scope: Scope = "smallest"
    attempt: int | None = None
    generation: int | None = None


class KillRequested(Event, frozen=True, kw_only=True):
    """A user sends a signal to one rank."""

    by: str
    rank: int
    signal: int


AnyEvent = (
    RunLaunched
    | SupervisorStarted
    | NodeConnected
    | NodeDisconnected
    | NodeGivenUp
    | NodeWarned
    | NodeCleared
    | NodeClosed
    | StoreOpened
    | StoreLost
    | RankSpawned
    | RankJoined
    | RankEnded
    | RankLost
    | StopRequested
    | RestartRequested
    | KillRequested
)
"""Every event; the tag `event` tells which one a journal line holds."""

INTENTS = (RunLaunched, StopRequested, RestartRequested, KillRequested)
"""What a user asked for: on the disk before it is acted upon."""
