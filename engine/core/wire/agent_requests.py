"""Requests of a supervisor to the agent of a node; see `agent`."""

from typing import Any

import msgspec

from engine.core.wire.agent import Message


class Request(Message, frozen=True, kw_only=True):
    """From the supervisor. A field has a default only if the agent can work without it."""


# --- the link -----------------------------------------------------------------------------------------------


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the agent behaves without a supervisor. Times are in seconds; `heartbeat` 0: none is expected."""

    lease: float
    on_disconnect: str
    stop_ladder: tuple[tuple[str, float], ...]
    stop_patience: float
    on_torn: str = "say"
    heartbeat: float = 0.0


class Greeting(Request, frozen=True, kw_only=True, tag="hello"):
    """The first frame of a connection: the run's mark, the agent's folder (empty: it chooses), and the name of the library.

    `title`: run and node, as `ps` shows them.
    `relay`: the agent is on another machine. `shared`: path and SHA-256 of a file by which it finds out whether it sees the run's folder.
    `in_job`: a scheduler's job started the run, so that the agent must end with its login. `in_step`: the connection is a step of a
    Slurm job, which ends everything that it has started.
    """

    protocol: int
    mark: str
    title: str
    folder: str
    terms: Terms
    library: str
    relay: bool = False
    shared: tuple[str, str] | None = None
    in_job: bool = False
    in_step: bool = False


class Ping(Request, frozen=True, kw_only=True, tag="ping"):
    """Shows that the supervisor is alive."""


class Close(Request, frozen=True, kw_only=True, tag="close"):
    """End the agent and everything below it; `keep`: leave its files."""

    keep: bool = False


# --- processes ------------------------------------------------------------------------------------------------


class InstallLibrary(Request, frozen=True, kw_only=True, tag="library"):
    """Unpack the package that ranks import: a tar archive in base64."""

    name: str
    tar: str


class ProcessRequest(Request, frozen=True, kw_only=True):
    """Start processes. `env` overrides the node's environment, which overrides `env_defaults`; `library` goes on PYTHONPATH.
    `library_path`: a folder for LD_LIBRARY_PATH, and links to make in one. `warm`: fork them from a template. `preload`: modules that the
    template imports besides torch. `user_template`: the socket of a template of the user, which may fork that of the run; `linger`: seconds
    that the former stays after it."""

    env: dict[str, str]
    env_defaults: dict[str, str]
    library: str
    library_path: tuple[str, dict[str, str]] = ("", {})
    warm: bool = False
    preload: tuple[str, ...] = ()
    user_template: str = ""
    linger: float = 0.0


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


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks of a node are bound to its cores: `layout.bind`, their number, and whether they compute on GPUs."""

    bind: str
    count: int
    gpus: bool


class RankToSpawn(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a Spawn: its own environment, the paths of its files on the node, and its command if it has its own. `unset`: variables
    of the node that it must not have. `local_rank`: which of the node's ranks it is, to bind it to cores. `begins`: bytes that each of its
    files has already, from a process on another node; empty: none."""

    rank: int
    generation: int
    env: dict[str, str]
    out: str
    err: str
    metrics: str
    stacks: str
    argv: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    local_rank: int = 0
    begins: tuple[int, ...] = ()


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
    binding: Binding | None = None


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
    """Put news for the ranks into the store of an attempt: a word, a generation, the number of ranks, and a signature."""

    attempt: int
    number: int
    news: tuple[str | int, ...]


class Stop(Request, frozen=True, kw_only=True, tag="stop"):
    """Send the signals of the stop ladder; `at_once`: SIGKILL only. Answered by RankEnded for each rank."""

    attempt: int
    at_once: bool


class Clear(Request, frozen=True, kw_only=True, tag="clear"):
    """End all that an attempt has left on the node. Answered by AttemptCleared."""

    attempt: int
    at_once: bool = False


# --- output, stacks and GPUs of ranks -------------------------------------------------------------------------


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


# --- questions ------------------------------------------------------------------------------------------------


class Question(Request, frozen=True, kw_only=True, omit_defaults=False):
    """The answer has the same number; whoever sends the question chooses it."""

    number: int = 0


class OpenListener(Question, frozen=True, kw_only=True, tag="open_door"):
    """Listen for other nodes, and answer each connection with the token. Answered by ListenerOpened."""

    token: str


class CloseListener(Question, frozen=True, kw_only=True, tag="close_door"):
    """Stop listening. Not answered."""


class TryAddresses(Question, frozen=True, kw_only=True, tag="knock"):
    """Connect to each address, and expect the token. Answered by AddressesTried."""

    addresses: tuple[str, ...]
    port: int
    token: str


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


def write_request(request: Request) -> dict[str, Any]:
    """A request as a dictionary for JSON."""
    message: dict[str, Any] = msgspec.to_builtins(request)
    return message
