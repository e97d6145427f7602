"""Reports of the agent of a node to a supervisor; see `agent`."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.core.checks.findings import Login
from engine.core.run.events import Found
from engine.core.wire.agent import Message, Number, Size


class Report(Message, frozen=True, kw_only=True):
    """From the agent."""


class Refused(Report, frozen=True, kw_only=True, tag="refused"):
    """The agent can't serve this run; the connection ends. `log`: the file with the output of agents that have ended again and again, the
    last one with `status`; `reason` is its end. Empty: no agent was started."""

    reason: str
    status: int | None = None
    log: str = ""


class RankListed(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that the agent started; `status` is None while it runs. `errors` and `numbers`: see EndReported."""

    attempt: Number
    rank: Size
    pid: Number
    status: Number | None
    reason: str = ""
    generation: Number = 0
    errors: str | None = None
    numbers: str = ""


class Hello(Report, frozen=True, kw_only=True, tag="hello"):
    """The first frame of a connection: the agent, its ranks as they ended, `(attempt, port)` of its store, whether it has the library.
    `torch`: version of the torch that its Python finds; empty: unknown. `shared`: it sees the run's folder. `state`: where files that
    outlive a run go on its node. `open_files`: how many files it may open. `processes`: how many more processes and threads its user may
    start. None: no limit is known. `ends_with`: the login that ends it."""

    pid: Number
    warden: Number = 0
    python: str = ""
    torch: str = ""
    ranks: tuple[RankListed, ...]
    store: tuple[Number, Number] | None = None
    library: bool
    folder: str = ""
    shared: bool = False
    state: str = ""
    open_files: Size | None = None
    processes: Size | None = None
    ends_with: Login = ""


class BridgeEnded(Report, frozen=True, kw_only=True, tag="bridge_ended"):
    """The bridge ended, and its step of a Slurm job goes on for the agent: the last frame of the connection."""


class Pong(Report, frozen=True, kw_only=True, tag="pong"):
    """The answer to Ping."""


class RankMessage(Report, frozen=True, kw_only=True):
    """About one rank of the node."""

    attempt: Number
    rank: Size


class SpawnReported(RankMessage, frozen=True, kw_only=True, tag="spawned"):
    """A rank's process exists."""

    pid: Number
    generation: Number = 0


class EndReported(RankMessage, frozen=True, kw_only=True, tag="ended"):
    """A rank's process ended: its exit code, or minus the signal. `reason`: why it could not be started. `errors` and `numbers`: the end
    of its stderr and metrics, where the agent relays them and not all may be stored yet. `by_itself`: it was ending before the agent told
    the ranks of the attempt to stop."""

    status: Number
    reason: str = ""
    generation: Number = 0
    errors: str | None = None
    numbers: str = ""
    by_itself: bool = False


class LossReported(RankMessage, frozen=True, kw_only=True, tag="lost"):
    """A rank ended in an unknown way; or, if it is `alive`, it could not be killed."""

    reason: str = ""
    alive: bool = False
    generation: Number = 0


class RankOutput(RankMessage, frozen=True, kw_only=True, tag="data"):
    """Bytes of a rank's file, and where they are in it. `stream`: 0 stdout, 1 stderr, 2 metrics."""

    stream: Annotated[int, Meta(ge=0, le=2)]
    offset: Size
    data: bytes = b""


class FilesGrew(Report, frozen=True, kw_only=True, tag="grew"):
    """Sizes of files that have grown: `(rank, out, err, metrics)`."""

    attempt: Number
    sizes: tuple[tuple[Size, Size, Size, Size], ...]


class GpusUsed(Report, frozen=True, kw_only=True, tag="gpus"):
    """`(rank, utilisation, memory, total memory)`, as the driver reports them; they may be of any type."""

    attempt: Number
    ranks: tuple[tuple[Size, Any, Any, Any], ...]


class RanksUsed(Report, frozen=True, kw_only=True, tag="usage"):
    """Resources that ranks use: `(rank, percent of one core, bytes of memory, bytes read a second, bytes written a second)`. `written`: the
    last file of a checkpoint that they were seen to write."""

    attempt: Number
    ranks: tuple[tuple[Size, Size, Size, Size | None, Size | None], ...]
    written: tuple[str, ...] = ()


class StoreReported(Report, frozen=True, kw_only=True, tag="store"):
    """The store of an attempt listens."""

    attempt: Number
    host: str
    port: Number


class StoreLossReported(Report, frozen=True, kw_only=True, tag="store_lost"):
    """The store of an attempt has ended, or can't be started. `status`: exit status of its process, if known; `output`: the end of what it
    wrote."""

    attempt: Number
    reason: str
    status: int | None = None
    output: str = ""


class AttemptCleared(Report, frozen=True, kw_only=True, tag="cleared"):
    """Nothing of an attempt is left but the processes `abandoned`; how large each rank's files are: `(rank, out, err, metrics)`."""

    attempt: Number
    abandoned: tuple[Number, ...] = ()
    sizes: tuple[Annotated[tuple[Size, ...], Meta(min_length=1)], ...] = ()
    at_once: bool = False


class DaemonWanted(Report, frozen=True, kw_only=True, tag="daemon"):
    """mpirun requests a daemon on another node."""

    attempt: Number
    host: str
    command: str


class MpirunEnded(Report, frozen=True, kw_only=True, tag="daemon_ended"):
    """mpirun, or its daemon on this node, has ended."""

    attempt: Number
    status: Number
    reason: str = ""


class StacksTaken(Report, frozen=True, kw_only=True, tag="stacks"):
    """`(rank, stacks, why there are none)`, `(rank, collectives)` of those that answered, and `(rank, pid, stacks)` of processes below ranks,
    `(rank, pid, name)` of programs below ranks that are no Python."""

    ranks: tuple[tuple[Size, str, str], ...]
    collectives: tuple[tuple[Size, str], ...] = ()
    children: tuple[tuple[Size, Size, str], ...] = ()
    programs: tuple[tuple[Size, Size, str], ...] = ()


class TemplateRefused(Report, frozen=True, kw_only=True, tag="cold"):
    """Ranks are started one by one: the template can't fork them, or has ended. `output`: the end of its output, whose file is `log`."""

    reason: str
    output: str = ""
    log: str = ""


class ImportsReported(Report, frozen=True, kw_only=True, tag="imports"):
    """A template forks its first process: what it has imported, in seconds, and what it left out, with the reason. `earlier`: it had
    imported everything before the request came."""

    modules: tuple[tuple[str, float], ...]
    left_out: tuple[tuple[str, str], ...] = ()
    earlier: bool = False


class RanksSave(Report, frozen=True, kw_only=True, tag="saving"):
    """Ranks that were told to stop save a checkpoint, and the stop ladder waits for it; empty: no rank does any more. `item`: the path
    of its file, if that is known; `size`: its bytes so far."""

    attempt: Number
    ranks: tuple[Size, ...]
    item: str = ""
    size: Size = 0


class JobSignalled(Report, frozen=True, kw_only=True, tag="job_signal"):
    """Slurm has sent SIGTERM to the processes of its job on this node: it ends the job, or somebody has asked it to send the signal."""


class CheckpointsSeen(Report, frozen=True, kw_only=True, tag="checkpoints"):
    """The checkpoints that the node of rank 0 has at the end of an attempt."""

    attempt: Number
    found: Found


class NoRoom(Report, frozen=True, kw_only=True, tag="no_room"):
    """Ranks or a store that start again wait until the disk of a folder has room."""

    path: str
    reason: str


class RequestFailed(Report, frozen=True, kw_only=True, tag="trouble"):
    """The agent could not carry out a request."""

    request: str
    reason: str


class Answer(Report, frozen=True, kw_only=True):
    """To the question of that number."""

    number: Number


class ListenerOpened(Answer, frozen=True, kw_only=True, tag="door"):
    """The node listens on this port of each address."""

    port: Number
    addresses: tuple[str, ...]


class AddressesTried(Answer, frozen=True, kw_only=True, tag="knocked"):
    """Addresses that answered with the token, each with the interface that was used."""

    reached: tuple[tuple[str, str], ...]


class InterfaceNamed(Answer, frozen=True, kw_only=True, tag="interface"):
    """The interface; empty where there is none."""

    name: str


class FolderMade(Answer, frozen=True, kw_only=True, tag="folder"):
    """The folder exists, or the reason why not."""

    reason: str = ""


class ProbeAnswered(Answer, frozen=True, kw_only=True, tag="probed"):
    """The probe's answers, one for each question."""

    answers: tuple[Any, ...]


AnyAnswer = ListenerOpened | AddressesTried | InterfaceNamed | FolderMade | ProbeAnswered
_OfRanks = SpawnReported | EndReported | LossReported | RankOutput | FilesGrew | GpusUsed | RanksUsed | StacksTaken
_OfTemplates = StoreReported | StoreLossReported | TemplateRefused | ImportsReported | DaemonWanted | MpirunEnded
_OfAttempts = AttemptCleared | RanksSave | CheckpointsSeen | JobSignalled | NoRoom | RequestFailed
AnyReport = Refused | Hello | Pong | BridgeEnded | _OfRanks | _OfTemplates | _OfAttempts | AnyAnswer
"""Every message of an agent."""


def read_report(message: object) -> AnyReport | None:
    """A frame from an agent, or None if this supervisor does not know its type. Raises ValueError: it is invalid; the text names the
    field."""
    if not isinstance(message, dict) or not isinstance(tag := message.get("type"), str):
        raise ValueError("it is not an object with a type")
    if (kind := _KINDS.get(tag)) is None:
        return None
    try:
        news: AnyReport = msgspec.convert(message, kind, builtin_types=(bytes,))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return news


_KINDS: dict[str, type[AnyReport]] = {kind.__struct_config__.tag: kind for kind in AnyReport.__args__}
"""The types by tag. msgspec would analyse a union again for each message."""
