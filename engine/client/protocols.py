"""The interface of the engine for front ends.

`EngineClient` is this machine: profiles, plans, runs. `RunClient` is one run, through its supervisor's socket. The output of ranks is
not sent: it is in files of the run, of which a front end reads the part that it shows.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from engine.core.arguments.argument import Argument, RecipeInfo
from engine.core.catalogue import BackendInfo, ImportedCommand, ProfileEntry
from engine.core.checks.findings import Begun, Finding
from engine.core.metrics.bench import Result
from engine.core.plan.batch.slurm import Partition
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile
from engine.core.run.events import Scope
from engine.core.views.comparison import Side
from engine.core.views.history import HistoryEntry
from engine.core.views.view import RunNote, RunSummary, Snapshot, Update
from engine.gate import CLOSED, Permit


class Compared(NamedTuple):
    """One run in a comparison, and what is known of its ranks and curves."""

    side: Side
    snapshot: Snapshot


class LogOrder(Protocol):
    """The order in which the ranks of an attempt wrote, as far as it is known. May read a file; threads may share it."""

    def refresh(self) -> bool:
        """Takes in new data. False: no order is known."""

    def position(self, rank: int, stream: Literal["out", "err"], end: int) -> float:
        """When a file had a size of at least `end` bytes, as a number that grows with time; infinite if nobody has seen it yet."""

    def size(self, rank: int, stream: Literal["out", "err"], position: float) -> int:
        """The bytes that a file had before a position."""


class RunClient(Protocol):
    """One run. Every request returns a sentence for the user: what happens now, or why nothing does."""

    run: str
    folder: Path

    def subscribe(self) -> AsyncIterator[Snapshot | Update]:
        """A snapshot, then what changes, until the run has ended or the connection breaks (SupervisorError)."""

    async def stop(self, *, at_once: bool = False) -> str:
        """Ends the run by its stop ladder, or by SIGKILL at once."""

    async def restart(
        self, scope: Scope = "smallest", *, attempt: int | None = None, generation: int | None = None
    ) -> str:
        """Restarts ranks; see `engine.core.run.events.RestartRequested` for the arguments."""

    async def kill(self, rank: int, signal: int, *, pid: int | None = None) -> str:
        """Sends a signal to one rank's process group. Waits some seconds for a rank that is about to start. `pid`: pid of the process that
        the user saw: the signal reaches no other one. None: whichever process the rank has. Raises RankdeckError: the signal reached no
        process."""

    async def stacks(self) -> list[str]:
        """Lines for people: which ranks wait for which, and the Python stacks of all ranks. Works on ranks that hang. Raises RankdeckError: the run
        has ended."""

    def log_path(self, attempt: int, rank: int, stream: Literal["out", "err"]) -> Path:
        """The file with a rank's output. It grows, and may not exist yet."""

    def log_order(self, attempt: int) -> LogOrder | None:
        """The order in which the ranks of an attempt wrote. None: nobody notes it."""

    def results(self, attempt: int) -> list[Result]:
        """The results of an attempt of the recipe allreduce so far. Reads a file; call it off the event loop."""

    def news(self) -> str:
        """Compares it with the last run of the same program that ended well, in one line. Reads files; call it off the event loop."""

    async def close(self) -> None:
        """Disconnects. The run keeps running."""


class EngineClient(Protocol):
    """This machine's profiles and runs. The plain functions read small files; call them off the event loop."""

    def profiles(self) -> list[ProfileEntry]:
        """Every profile of every folder, nearest folder first; the first profile of a name wins."""

    def recipes(self) -> list[RecipeInfo]:
        """Built-in training scripts."""

    def script(self, recipe: str) -> str:
        """The source of a recipe. Raises UsageError."""

    def arguments(self, script: str, folder: str) -> tuple[Argument, ...]:
        """The arguments that a user's script, relative to a folder, declares. The script is read, not run."""

    def backends(self) -> list[BackendInfo]:
        """The values of `backend.name`."""

    def permit(self, entry: ProfileEntry | None) -> Permit:
        """The permit of a profile, for `preview` and other methods. `entry`: None while the user types the profile."""

    def trust(self, entry: ProfileEntry) -> Permit:
        """Remembers that the user trusts a profile with this content in this folder, and returns its new permit."""

    def available(self, profile: Profile, permit: Permit) -> list[BackendInfo]:
        """The values of `backend.name`, and which can run on a profile's nodes. Raises ProfileError or CheckError."""

    def partitions(self) -> list[Partition]:
        """Slurm's partitions, and what is free there. Raises CheckError if Slurm does not answer, or there is none."""

    def preview(self, profile: Profile, permit: Permit) -> LaunchPlan:
        """The plan of a launch, as far as reading files goes where nothing may start. Raises ProfileError or CheckError."""

    def imported(self, command: str) -> ImportedCommand:
        """Reads a command of another launcher, the text of a batch file, or the name of one. Nothing is started. Raises RankdeckError: it can't be
        read."""

    def save_profile(self, profile: Profile, path: Path | None = None) -> Path:
        """Writes a profile; an existing file keeps its comments and order. `path` None: the user's own folder, where a script
        of this folder gets its absolute path."""

    def keep_settings(self, values: Mapping[tuple[str, ...], object]) -> Path:
        """Writes values into the user's settings and returns the file; see `engine.runs.settings`. Raises ProfileError: the file has an error, or
        can't be written."""

    def add_profile_folder(self, folder: str) -> None:
        """Puts a folder before those of the settings in which profiles are found. `folder`: absolute. Raises as `keep_settings` does."""

    def profile_folders(self) -> list[Path]:
        """Folders in which profiles are found by name, nearest first. Raises ProfileError if the settings can't be read."""

    def site_defaults(self) -> Mapping[str, Any]:
        """Defaults of profiles that administrators have set, as tables of a document. Raises ProfileError if that can't be read."""

    def launched_profile(self, run: str) -> Profile:
        """The profile that a run was launched with; its folder and script are absolute. Raises RankdeckError."""

    def runs(self) -> list[RunSummary]:
        """Every run that is kept, newest first."""

    def history(self) -> list[HistoryEntry]:
        """Every run that is kept, newest first, with sizes and what differs. Reads several files of each run."""

    def write_note(self, run: str, note: RunNote) -> None:
        """Stores the user's note about a run. Raises RankdeckError."""

    def remove_run(self, run: str) -> None:
        """Removes a run that has ended with all its files. Raises RankdeckError."""

    def compared(self, run: str) -> Compared:
        """A run for a comparison, with its curves. Raises RankdeckError."""

    def check(self, profile: Profile, permit: Permit, *, full: bool = True) -> AsyncGenerator[Begun | Finding, None]:
        """Checks every node; see `engine.planning.check.check`. Raises ProfileError, CheckError, or NotTrustedError if nothing may start.

        Close the generator (`contextlib.aclosing`) to end the check.
        """

    async def prewarm(self, profile: Profile | None, permit: Permit = CLOSED) -> None:
        """Prepares for the launch of a profile while it is selected. Call it again regularly.

        Expires unless refreshed within a minute; None ends it immediately. Never raises.
        """

    async def launch(self, profile: Profile) -> str:
        """Starts a run and returns its id. Raises ProfileError or CheckError if it can't start."""

    async def attach(self, run: str) -> RunClient:
        """Connects to a run; starts a new supervisor if the old one is gone. Raises RankdeckError."""
