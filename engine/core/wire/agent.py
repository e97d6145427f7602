"""Messages between a supervisor and the agent of a node: JSON objects in frames, distinguished by `type`.

supervisor  Hello, then any other `Request`; a question is answered by the `Answer` that has its number
agent       Hello or Refused, then whatever happens on the node (`Report`)

The agent uses only the standard library, so it has dictionaries instead of these types; `tests/unit/test_wire.py` compares the two. An
agent lives as long as its run, so it may be of an earlier rankdeck: fields that it does not send have a default, and it ignores fields
that it does not know.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.core.run.state import RankNews

LARGEST = (1 << 53) - 1
"""The largest whole number that every reader of JSON keeps exactly."""

Number = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Size = Annotated[int, Meta(ge=0, le=LARGEST)]
"""Bytes, or the number of a rank."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One frame."""


class Request(Message, frozen=True, kw_only=True):
    """From the supervisor. A field has a default only if the agent can work without it."""


# --- requests: the link -----------------------------------------------------------------------------------------------


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the agent does without a supervisor. Times are in seconds; `heartbeat` 0: none is expected."""

    lease: float
    on_disconnect: str
    stop_ladder: tuple[tuple[str, float], ...]
    heartbeat: float = 0.0


class Greeting(Request, frozen=True, kw_only=True, tag="hello"):
    """The first frame of a connection: the run's mark, the agent's folder (empty: it chooses), and the name of the library.

    `relay`: the agent is on another machine. `shared`: path and SHA-256 of a file by which it finds out whether it sees the run's folder.
    """

    protocol: int
    mark: str
    folder: str
    terms: Terms
    library: str
    relay: bool = False
    shared: tuple[str, str] | None = None


class Ping(Request, frozen=True, kw_only=True, tag="ping"):
    """Shows that the supervisor is alive."""


class Close(Request, frozen=True, kw_only=True, tag="close"):
    """End the agent and everything below it; `keep`: leave its files."""

    keep: bool = False


# --- requests: processes ------------------------------------------------------------------------------------------------


class InstallLibrary(Request, frozen=True, kw_only=True, tag="library"):
    """Unpack the package that ranks import: a tar archive in base64."""

    name: str
    tar: str


class ProcessRequest(Request, frozen=True, kw_only=True):
    """Start processes. `env` overrides the node's environment, which overrides `env_defaults`; `library` goes on PYTHONPATH.

    `library_path`: a folder for LD_LIBRARY_PATH, and links to make in one. `warm`: fork them from a template.
    """

    env: dict[str, str]
    env_defaults: dict[str, str]
    library: str
    library_path: tuple[str, dict[str, str]] = ("", {})
    warm: bool = False


class OpenStore(ProcessRequest, frozen=True, kw_only=True, tag="open_store"):
    """Start the store of an attempt. Answered by StoreOpened or StoreLost."""

    attempt: int
    argv: tuple[str, ...]
    host: str
    log: str
    news: str = ""


class WarmTemplate(ProcessRequest, frozen=True, kw_only=True, tag="warm"):
    """Start a template before a launch, and have it fork `spares` processes in advance."""

    argv: tuple[str, ...]
    spares: int


class LetGo(Request, frozen=True, kw_only=True, tag="let_go"):
    """End the template, and the store of this attempt, whose ranks have all ended. The next attempt makes new ones."""

    attempt: int


class RankToSpawn(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a Spawn: its own environment and the paths of its files on the node."""

    rank: int
    generation: int
    env: dict[str, str]
    out: str
    err: str
    metrics: str
    stacks: str


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks wait for a place in mpirun's job. `defaults`: environment variables that mpirun and the node override."""

    argv: tuple[str, ...]
    defaults: dict[str, str]


class MpirunPlacement(Placement, frozen=True, kw_only=True):
    """The placement on the first node, which starts mpirun itself. `launcher`: the script that mpirun runs in place of ssh."""

    name: str
    env: dict[str, str]
    log: str
    launcher: str


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """mpirun's daemon on another node; `command` is for a shell."""

    name: str
    env: dict[str, str]
    log: str
    command: str


class Spawn(ProcessRequest, frozen=True, kw_only=True, tag="spawn"):
    """Start ranks. Answered by RankSpawned or RankEnded for each."""

    attempt: int
    argv: tuple[str, ...]
    cwd: str
    ranks: tuple[RankToSpawn, ...]
    mpirun: Placement | None = None


class StartDaemon(ProcessRequest, frozen=True, kw_only=True, tag="daemon"):
    """Start mpirun's daemon of an attempt, once. Answered by MpirunEnded when it has ended."""

    attempt: int
    mpirun: Daemon


class MpirunGone(Request, frozen=True, kw_only=True, tag="mpirun_gone"):
    """mpirun has ended on the first node: ranks that wait for their place will not get one."""

    attempt: int
    reason: str


class DaemonEnded(Request, frozen=True, kw_only=True, tag="daemon_ended"):
    """The daemon on `host` has ended: end the process that represents it below mpirun."""

    attempt: int
    host: str
    status: int


class SignalRank(Request, frozen=True, kw_only=True, tag="signal"):
    """Signal the process group of a rank."""

    attempt: int
    rank: int
    signal: int


class TellRanks(Request, frozen=True, kw_only=True, tag="tell"):
    """Put news for the ranks into the store of an attempt. The third item signs it."""

    attempt: int
    number: int
    news: RankNews | tuple[str, int, str]


class Stop(Request, frozen=True, kw_only=True, tag="stop"):
    """Send the signals of the stop ladder; `at_once`: SIGKILL only. Answered by RankEnded for each rank."""

    attempt: int
    at_once: bool


class Clear(Request, frozen=True, kw_only=True, tag="clear"):
    """End whatever an attempt has left on the node. Answered by AttemptCleared."""

    attempt: int
    at_once: bool = False


# --- requests: output, stacks and GPUs of ranks -------------------------------------------------------------------------


class Relay(Request, frozen=True, kw_only=True, tag="relay"):
    """Send what ranks write from these offsets on: `(rank, out, err, metrics)`."""

    attempt: int
    offsets: tuple[tuple[int, ...], ...]


class Stored(Request, frozen=True, kw_only=True, tag="stored"):
    """Confirms that relayed bytes have arrived."""

    size: int


class TakeStacks(Request, frozen=True, kw_only=True, tag="stacks"):
    """Have every rank write its stacks and collectives. Answered by StacksTaken."""

    attempt: int


class WatchGpus(ProcessRequest, frozen=True, kw_only=True, tag="watch_gpus"):
    """Report how these ranks use their GPUs, once in an attempt. Answered by GpusUsed every two seconds."""

    attempt: int
    argv: tuple[str, ...]
    ranks: tuple[int, ...]


# --- requests: questions ------------------------------------------------------------------------------------------------


class Question(Request, frozen=True, kw_only=True, omit_defaults=False):
    """The answer has the same number; whoever sends the question chooses it."""

    number: int = 0


class OpenListener(Question, frozen=True, kw_only=True, tag="open_door"):
    """Listen for other nodes, and answer each connection with the token. Answered by ListenerOpened."""

    token: str = msgspec.field(name="word")


class CloseListener(Question, frozen=True, kw_only=True, tag="close_door"):
    """Stop listening. Not answered."""


class TryAddresses(Question, frozen=True, kw_only=True, tag="knock"):
    """Connect to each address, and expect the token. Answered by AddressesTried."""

    addresses: tuple[str, ...]
    port: int
    token: str = msgspec.field(name="word")


class NameInterface(Question, frozen=True, kw_only=True, tag="name_interface"):
    """Which interface has this address? Answered by InterfaceNamed."""

    address: str


class MakeFolder(Question, frozen=True, kw_only=True, tag="make_folder"):
    """Make the folder that code is copied to. Answered by FolderMade."""

    path: str


class RunProbe(Question, frozen=True, kw_only=True, tag="probe"):
    """Have a probe answer questions about the node. Answered by ProbeAnswered."""

    argv: tuple[str, ...]
    questions: tuple[dict[str, Any], ...]


# --- reports ------------------------------------------------------------------------------------------------------------


class Report(Message, frozen=True, kw_only=True):
    """From the agent."""


class Refused(Report, frozen=True, kw_only=True, tag="refused"):
    """The agent can't serve this run; the connection ends."""

    reason: str


class KnownRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that the agent started; `status` is None while it runs. `errors` and `numbers`: see RankEnded."""

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

    `shared`: it sees the run's folder. `state`: where files that outlive a run go on its node. `open_files`: how many files it may open.
    `processes`: how many more processes and threads its user may start. None: no limit is known.
    """

    pid: Number
    warden: Number = 0
    python: str = ""
    ranks: tuple[KnownRank, ...]
    store: tuple[Number, Number] | None = None
    library: bool
    folder: str = ""
    shared: bool = False
    state: str = ""
    open_files: Size | None = None
    processes: Size | None = None


class Pong(Report, frozen=True, kw_only=True, tag="pong"):
    """The answer to Ping."""


class RankMessage(Report, frozen=True, kw_only=True):
    """About one rank of the node."""

    attempt: Number
    rank: Size


class RankSpawned(RankMessage, frozen=True, kw_only=True, tag="spawned"):
    """A rank's process exists."""

    pid: Number
    generation: Number = 0


class RankEnded(RankMessage, frozen=True, kw_only=True, tag="ended"):
    """A rank's process ended: its exit code, or minus the signal. `reason`: why it could not be started.

    `errors` and `numbers`: the end of its stderr and metrics, where the agent relays them and not all may be stored yet.
    """

    status: Number
    reason: str = ""
    generation: Number = 0
    errors: str | None = None
    numbers: str = ""


class RankLost(RankMessage, frozen=True, kw_only=True, tag="lost"):
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


class StoreOpened(Report, frozen=True, kw_only=True, tag="store"):
    """The store of an attempt listens."""

    attempt: Number
    host: str
    port: Number


class StoreLost(Report, frozen=True, kw_only=True, tag="store_lost"):
    """The store of an attempt has ended, or can't be started."""

    attempt: Number
    reason: str


class AttemptCleared(Report, frozen=True, kw_only=True, tag="cleared"):
    """Nothing of an attempt is left but the processes `abandoned`; how large each rank's files are: `(rank, out, err, metrics)`."""

    attempt: Number
    abandoned: tuple[Number, ...] = ()
    sizes: tuple[Annotated[tuple[Size, ...], Meta(min_length=1)], ...] = ()
    at_once: bool = False


class DaemonWanted(Report, frozen=True, kw_only=True, tag="daemon"):
    """mpirun wants a daemon on another node."""

    attempt: Number
    host: str
    command: str


class MpirunEnded(Report, frozen=True, kw_only=True, tag="daemon_ended"):
    """mpirun, or its daemon on this node, has ended."""

    attempt: Number
    status: Number
    reason: str = ""


class StacksTaken(Report, frozen=True, kw_only=True, tag="stacks"):
    """`(rank, stacks, why there are none)`, and `(rank, collectives)` of those that answered."""

    ranks: tuple[tuple[Size, str, str], ...]
    collectives: tuple[tuple[Size, str], ...] = ()


class TemplateRefused(Report, frozen=True, kw_only=True, tag="cold"):
    """Ranks are started one by one: the template can't fork them."""

    reason: str


class RequestFailed(Report, frozen=True, kw_only=True, tag="trouble"):
    """The agent could not do what was asked."""

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
    """Addresses at which the token was heard, each with the interface that led there."""

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
AnyReport = (
    Refused
    | Hello
    | Pong
    | RankSpawned
    | RankEnded
    | RankLost
    | RankOutput
    | FilesGrew
    | GpusUsed
    | StoreOpened
    | StoreLost
    | AttemptCleared
    | DaemonWanted
    | MpirunEnded
    | StacksTaken
    | TemplateRefused
    | RequestFailed
    | AnyAnswer
)
"""Every message of an agent."""


def read_report(message: object) -> AnyReport | None:
    """A frame from an agent, or None if this supervisor does not know its type.

    Raises:
        ValueError: it is invalid; the text names the field.
    """
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


def write_request(request: Request) -> dict[str, Any]:
    """A request as a dictionary for JSON."""
    message: dict[str, Any] = msgspec.to_builtins(request)
    return message
