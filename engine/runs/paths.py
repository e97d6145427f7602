"""All file and folder names that rankdeck uses.

A run's folder may be on NFS, shared by several login nodes, so sockets are elsewhere: in the user's runtime directory, or in a private
folder of the temporary directory.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Literal

from engine.core.errors import CheckError, RankdeckError
from engine.installed import PROFILES
from engine.linux import folders

Stream = Literal["out", "err"]

RankFile = Literal["out", "err", "metrics", "stacks", "error.json", "state"]  # suffixes of a rank's files
HERE = ".rankdeck"  # the folder of profiles in a working directory
MAX_SOCKET_PATH = 107  # longest path of a unix socket on Linux, in bytes


def state_folder() -> Path:
    """Where rankdeck keeps runs: `$RANKDECK_HOME`, else `$XDG_STATE_HOME/rankdeck`."""
    if chosen := os.environ.get("RANKDECK_HOME"):
        return Path(os.path.expanduser(chosen)).absolute()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.expanduser(state)) / "rankdeck"


def _config_folder() -> Path:
    """`$RANKDECK_HOME`, else `$XDG_CONFIG_HOME/rankdeck`."""
    if chosen := os.environ.get("RANKDECK_HOME"):
        return Path(os.path.expanduser(chosen))
    return Path(os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config")) / "rankdeck"


def settings_file() -> Path:
    """The user's settings of the app and of notifications."""
    return _config_folder() / "config.toml"


def profile_folders() -> list[tuple[str, Path]]:
    """Folders of profiles, nearest first, each with its name for users."""
    own = _config_folder() / "profiles"
    return [("here", Path(HERE).absolute()), ("yours", own), ("shipped", PROFILES)]


def private_folder(path: Path) -> Path:
    """Makes a folder that only this user can enter, or checks and closes the one that exists. Raises RankdeckError: another user could put files
    there, or has done so."""
    try:
        folders.private_folder(str(path))
    except RuntimeError as error:
        hint = "remove it, or set XDG_RUNTIME_DIR, TMPDIR or RANKDECK_HOME to a folder of yours"
        raise RankdeckError(str(error), hint=hint) from None
    return path


def runtime_folder() -> Path:
    """Where sockets live: `$XDG_RUNTIME_DIR/rankdeck`, else a folder of the user in the temporary directory. Raises RankdeckError: another user could
    put files there."""
    base = folders.login_folder()
    return private_folder(Path(base, "rankdeck") if base else Path(tempfile.gettempdir(), f"rankdeck-{os.geteuid()}"))


TRACE = "nccl_trace_rank_"  # prefix of torch's flight recorder files in the folder of an attempt; torch adds the rank
STANDBY = ".standby-"  # prefix of folders of standby supervisors, among those of runs


class RunPaths:
    """All files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder.name
        self.journal = folder / "journal.jsonl"
        self.plan = folder / "plan.json"
        self.profile = folder / "profile.toml"
        self.lock = folder / "supervisor.lock"
        self.supervisor = folder / "supervisor.json"
        self.guards = folder / "guards.json"
        self.supervisor_log = folder / "supervisor.log"
        self.series = folder / "series.json"
        self.summary = folder / "summary.json"
        self.numbers = folder / "numbers.json"
        self.note = folder / "note.json"
        self.room = folder / "room"
        self.job = folder / "job.json"
        self.nodes = folder / "nodes"
        self.checkpoints = folder / "checkpoints"

    def origin(self, attempt: int) -> Path:
        """The origin of an attempt; absent if it is the same as for the attempt before."""
        return self.folder / f"origin_{attempt}.json"

    def code_diff(self, attempt: int) -> Path:
        """The uncommitted changes of the working directory at the start of an attempt; absent if there were none."""
        return self.folder / f"code_{attempt}.diff"

    @property
    def mark(self) -> str:
        """Identifies this run on a machine, even among runs of the same id in different homes. Short, because it is part of socket names."""
        return f"{self.run[:24]}-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12]}"

    @property
    def socket(self) -> Path:
        """The supervisor's socket. Raises CheckError: its path would be longer than the kernel allows."""
        path = runtime_folder() / f"{self.mark}.sock"
        if len(os.fsencode(path)) + len("agent-") > MAX_SOCKET_PATH:
            hint = "set XDG_RUNTIME_DIR to a shorter path"
            raise CheckError(f"{path.parent} is too long a path for a socket", hint=hint)
        return path

    def attempt(self, attempt: int) -> Path:
        """The folder of one attempt."""
        return self.folder / f"attempt_{attempt}"

    def rank_file(self, attempt: int, rank: int, kind: RankFile) -> Path:
        return self.attempt(attempt) / f"rank_{rank}.{kind}"

    def log(self, attempt: int, rank: int, stream: Stream) -> Path:
        """The unchanged output of a rank."""
        return self.rank_file(attempt, rank, stream)

    def metrics(self, attempt: int, rank: int) -> Path:
        """The reports of `rankdeck.log`: JSON lines."""
        return self.rank_file(attempt, rank, "metrics")

    def traces(self, attempt: int) -> Path:
        """Prefix of the paths of torch's flight recorder files; torch adds the rank."""
        return self.attempt(attempt) / TRACE

    def order(self, attempt: int) -> Path:
        """The order in which the ranks wrote: see `log_order`."""
        return self.attempt(attempt) / "order"

    def store_log(self, attempt: int) -> Path:
        """The output of the store's process."""
        return self.attempt(attempt) / "store.log"

    def store_news(self, attempt: int) -> Path:
        """The named pipe from the agent to the store's process, for news to ranks."""
        return self.attempt(attempt) / "store.news"

    def store_key(self, attempt: int) -> Path:
        """The secret with which rankdeck signs its values in the store."""
        return self.attempt(attempt) / "store.key"

    def mpirun_log(self, attempt: int) -> Path:
        """The output of mpirun or its daemon."""
        return self.attempt(attempt) / "mpirun.log"

    def node(self, node: str) -> Path:
        """The folder of a local agent: its state and the package that ranks import. Agents on other machines have one there."""
        return self.nodes / node

    def node_folder_note(self, node: str) -> Path:
        """A file with the path of the agent's folder on another machine."""
        return self.node(node) / "where"


def runs_folder() -> Path:
    """The folder of all runs."""
    return state_folder() / "runs"


def utf8_path(path: str) -> str:
    """A path that JSON can hold: the same path, or one through a symbolic link in rankdeck's folder if it is not UTF-8. `path`: an absolute path.
    Raises CheckError: the link can't be made."""
    if _is_utf8(path):
        return path
    folder, name = os.path.split(path)
    target, rest = (folder, name) if _is_utf8(name) else (path, "")
    try:
        link = private_folder(state_folder() / "links") / hashlib.sha256(os.fsencode(target)).hexdigest()[:16]
        with contextlib.suppress(FileExistsError):
            link.symlink_to(target)
    except OSError as error:
        hint = "rename the folder"
        raise CheckError(f"{path!a} is not UTF-8, and no link to it can be made: {error.strerror}", hint=hint) from None
    if not _is_utf8(str(link)):
        raise CheckError(f"{str(link)!a} is not UTF-8", hint="point RANKDECK_HOME elsewhere")
    return str(link / rest)


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
