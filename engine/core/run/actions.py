"""Actions of the state machine. The supervisor carries them out and answers with events."""

import msgspec

from engine.core.run.state import RankNews


class Action(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something to do."""


class OpenNode(Action, frozen=True, kw_only=True):
    """Connect to the node's agent, or start one if there is none. Answer: NodeConnected or NodeGivenUp. `patience`: seconds from now
    after which the node is given up. None: at the first failure if its agent never answered, else 30 s after the lease of its ranks
    (`RECONNECT_MARGIN`). If the node is already being connected, only the patience changes."""

    node: str
    patience: float | None = None


class OpenStore(Action, frozen=True, kw_only=True):
    """Host the store of an attempt on a node. Answer: StoreOpened or StoreLost."""

    node: str
    attempt: int


class SpawnRanks(Action, frozen=True, kw_only=True):
    """Start ranks on a node. Answer, for each: RankSpawned or RankEnded."""

    node: str
    attempt: int
    ranks: tuple[int, ...]
    address: str
    port: int
    generations: tuple[int, ...]  # of each of these ranks


class TellRanks(Action, frozen=True, kw_only=True):
    """Put news for the ranks of an attempt into its store. A repetition has no effect."""

    node: str
    attempt: int
    number: int
    news: RankNews


class StopRanks(Action, frozen=True, kw_only=True):
    """Send the signals of the stop ladder to every rank of an attempt on a node. Answer, for each: RankEnded."""

    node: str
    attempt: int
    at_once: bool = False


class SignalRank(Action, frozen=True, kw_only=True):
    """Send one signal to the process group of a rank."""

    node: str
    attempt: int
    rank: int
    signal: int


class ClearNode(Action, frozen=True, kw_only=True):
    """End all remaining processes of an attempt on a node: its store, and children that left their rank's group. Answer: NodeCleared.
    `at_once`: do not wait until the output of its ranks is stored."""

    node: str
    attempt: int
    at_once: bool = False


class CloseNode(Action, frozen=True, kw_only=True):
    """End the node's agent. Answer: NodeClosed."""

    node: str


class Ignore(Action, frozen=True, kw_only=True):
    """Do nothing. `reason`: the answer to the sender of the event."""

    reason: str


AnyAction = OpenNode | OpenStore | SpawnRanks | TellRanks | StopRanks | SignalRank | ClearNode | CloseNode | Ignore
