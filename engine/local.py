"""`EngineClient` and `RunClient` for this machine: profiles in folders, runs in the user's state folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from engine import __version__, planning, profiles, recipes
from engine.backends import BACKENDS
from engine.client import BackendInfo, ProfileEntry, RecipeInfo
from engine.core.errors import CheckError, RankdeckError, RunNotFoundError, SupervisorError, SupervisorLostError
from engine.core.messages import ENDING, Answer, Hello, Kill, Refused, Reply, Request, Restart, Stop, Subscribe, Welcome
from engine.core.plan import LaunchPlan
from engine.core.profile import Profile
from engine.core.state import ENDED_WORDS
from engine.core.view import PROTOCOL, RunSummary, Snapshot, Update
from engine.paths import RunPaths, Stream, private_folder, runs_folder
from engine.record import read_summary, read_whereabouts, replace_file, stored_snapshot

MARK = "RANKDECK_MARK"
"""By which an agent finds what its ranks have started; see `engine.node.agent`."""

MAX_LINE = 1 << 28
"""Bytes of one line from a supervisor: a snapshot with the curves of thousands of ranks."""

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""Letters of a run's id: none that is mistaken for another when read aloud or typed from a screen."""

_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
_COMMAND = Path(__file__).resolve().parent.parent / "rankdeck_command.py"


# --- runs by name ------------------------------------------------------------------------------------------------------


def all_runs() -> list[RunPaths]:
    """Every run that is kept, newest first."""
    try:
        folders = [entry for entry in os.scandir(runs_folder()) if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(launched, Path(entry.path)) for entry in folders if (launched := _launched_at(Path(entry.path)))]
    return [RunPaths(folder) for _, folder in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _launched_at(folder: Path) -> float:
    """When a run was launched: its plan is written once, just before. 0 for a folder that is no run."""
    try:
        return (folder / "plan.json").stat().st_mtime
    except OSError:
        return 0.0


def find_run(word: str) -> RunPaths:
    """The run of that id, of that unique beginning of an id, or, for `-`, the newest.

    Raises:
        RunNotFoundError: none, or several.
    """
    runs = all_runs()
    if word == "-" and runs:
        return runs[0]
    exact = [run for run in runs if run.run == word]
    found = exact or [run for run in runs if word and run.run.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(run.run for run in found[:5])
        raise RunNotFoundError(f"{word!r} may be any of {len(found)} runs", hint=f"type more of it: {some}")
    hint = (
        "rankdeck ps --all lists them" if runs else "no run was ever launched here; rankdeck launch PROFILE starts one"
    )
    raise RunNotFoundError(f"there is no run {word!r}", hint=hint)


# --- supervisors -------------------------------------------------------------------------------------------------------


async def start_supervisor(paths: RunPaths, *, restart_by: str | None = None) -> None:
    """Starts the process that owns a run. It leaves this one's session, and is nobody's child.

    Raises:
        SupervisorError: it did not come up; the message is its own.
    """
    said = await asyncio.to_thread(_start_supervisor, paths, restart_by)
    if said != "ready":
        raise SupervisorError(said or "the supervisor did not start", hint=f"its log: {paths.supervisor_log}")


def _start_supervisor(paths: RunPaths, restart_by: str | None) -> str:
    argv = [sys.executable, "-P", str(_COMMAND), "supervise", str(paths.folder), *([restart_by] if restart_by else [])]
    # What a rank's script starts must not be taken for a stray child of its run.
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    with open(os.open(paths.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as log:
        starter = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    with starter:
        assert starter.stdout is not None
        return starter.stdout.readline().decode(errors="replace").strip()


def socket_of(paths: RunPaths) -> str:
    """Where a run's supervisor listens: where it says, since its environment may be another login's; or where one would."""
    where = read_whereabouts(paths)
    return where.socket if where is not None else str(paths.socket)


def _elsewhere(paths: RunPaths) -> str | None:
    """The other host on which a run's supervisor lives, or None."""
    where = read_whereabouts(paths)
    return where.host if where is not None and where.host != socket.gethostname() else None


class Connection:
    """One connection to a supervisor, after both sides have said who they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.pid = 0

    @classmethod
    async def open(cls, paths: RunPaths) -> Connection:
        """Connects.

        Raises:
            ConnectionError: nobody listens.
            SupervisorError: somebody does, but does not talk to us.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(socket_of(paths), limit=MAX_LINE)
        except (FileNotFoundError, ConnectionError) as error:
            raise ConnectionError(str(error)) from None
        connection = cls(reader, writer)
        connection.write(Hello(protocol=PROTOCOL, version=__version__))
        welcome = await connection.read()
        if welcome is None:
            connection.close()
            raise ConnectionError("it hung up")
        if not isinstance(welcome, Welcome):
            connection.close()
            reason = welcome.reason if isinstance(welcome, Refused) else "it said something else than welcome"
            raise SupervisorError(f"run {paths.run} does not talk to this rankdeck: {reason}")
        connection.pid = welcome.pid
        return connection

    def write(self, message: Hello | Request) -> None:
        """Sends one line."""
        self._writer.write(msgspec.json.encode(message) + b"\n")

    async def read(self) -> Reply | None:
        """The next line, or None at the end."""
        try:
            line = await self._reader.readline()
            return _replies.decode(line) if line.endswith(b"\n") else None
        except ConnectionError:
            return None
        except msgspec.DecodeError as error:
            raise SupervisorError(f"the supervisor said what this rankdeck does not understand: {error}") from None

    def close(self) -> None:
        """Hangs up."""
        self._writer.close()


class LocalRun:
    """A run on this machine; see `RunClient`.

    Args:
        paths: of the run.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.run = paths.run
        self.folder = paths.folder

    async def _connect(self) -> Connection | None:
        """A connection to the supervisor, which is started anew where it was lost; None once the run has ended.

        Raises:
            SupervisorError: it lives on another host, or can't be started.
        """
        for _ in range(3):
            with contextlib.suppress(ConnectionError):
                return await Connection.open(self.paths)
            if (await asyncio.to_thread(stored_snapshot, self.paths)).run.state in ENDED_WORDS:
                return None
            if host := _elsewhere(self.paths):
                raise SupervisorError(
                    f"the supervisor of {self.run} is on {host}", hint=f"log in there: rankdeck attach {self.run}"
                )
            with contextlib.suppress(SupervisorError):
                await start_supervisor(self.paths)
        raise SupervisorError(
            f"the supervisor of {self.run} does not answer", hint=f"its log: {self.paths.supervisor_log}"
        )

    async def subscribe(self) -> AsyncGenerator[Snapshot | Update, None]:
        """See `RunClient.subscribe`."""
        connection = await self._connect()
        if connection is None:
            yield await asyncio.to_thread(stored_snapshot, self.paths)
            return
        ended = False
        try:
            connection.write(Subscribe())
            while (message := await connection.read()) is not None:
                if isinstance(message, Snapshot | Update):
                    ended = ended if message.run is None else message.run.state in ENDED_WORDS
                    yield message
        finally:
            connection.close()
        if not ended:
            last = await asyncio.to_thread(stored_snapshot, self.paths)
            if last.run.state not in ENDED_WORDS:
                raise SupervisorLostError(f"the supervisor of {self.run} is gone; the ranks go on")
            yield last
        await _wait_process_gone(connection.pid)

    async def snapshot(self) -> Snapshot:
        """The run at this moment."""
        for _ in range(3):
            with contextlib.suppress(SupervisorLostError):
                async with contextlib.aclosing(self.subscribe()) as messages:
                    async for message in messages:
                        if isinstance(message, Snapshot):
                            return message
        return await asyncio.to_thread(stored_snapshot, self.paths)

    async def _ask(self, request: Stop | Restart | Kill) -> Answer | None:
        connection = await self._connect()
        if connection is None:
            return None
        try:
            connection.write(request)
            answer = await connection.read()
        finally:
            connection.close()
        if not isinstance(answer, Answer):
            raise SupervisorError(f"the supervisor of {self.run} hung up before it answered")
        return answer

    async def stop(self, *, at_once: bool = False) -> str:
        """See `RunClient.stop`."""
        answer = await self._ask(Stop(by=user_name(), at_once=at_once))
        return answer.text if answer else "the run has ended already"

    async def restart(self) -> str:
        """See `RunClient.restart`. A run that has ended gets a new supervisor."""
        for _ in range(20):
            answer = await self._ask(Restart(by=user_name()))
            if answer is None:
                break
            if answer.text != ENDING:
                return answer.text
            await asyncio.sleep(0.25)
        words = stored_snapshot(self.paths).run.restart
        await start_supervisor(self.paths, restart_by=user_name())
        return f"now: {words}"

    async def kill(self, rank: int, signal: int) -> str:
        """See `RunClient.kill`."""
        answer = await self._ask(Kill(by=user_name(), rank=rank, signal=signal))
        return answer.text if answer else "the run has ended already"

    def log_path(self, attempt: int, rank: int, stream: Stream) -> Path:
        """See `RunClient.log_path`."""
        return self.paths.log(attempt, rank, stream)

    async def close(self) -> None:
        """See `RunClient.close`. Nothing is held open between requests."""


async def _wait_process_gone(pid: int) -> None:
    """Returns when a process has ended, or after a second: a run's last message comes just before its supervisor's end."""
    for _ in range(200):
        try:
            if process_state(pid) == "Z":
                return
        except OSError:
            return
        await asyncio.sleep(0.005)


def process_state(pid: int) -> str:
    """The kernel's letter for a process: `R`, `S`, `Z`, … Raises OSError where there is none."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def user_name() -> str:
    """Who asks, for the journal."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.geteuid()}"


# --- this machine --------------------------------------------------------------------------------------------------------


class LocalEngine:
    """See `EngineClient`."""

    def profiles(self) -> list[ProfileEntry]:
        """See `EngineClient.profiles`."""
        return profiles.list_profiles()

    def recipes(self) -> list[RecipeInfo]:
        """See `EngineClient.recipes`."""
        return list(recipes.recipes().values())

    def backends(self) -> list[BackendInfo]:
        """See `EngineClient.backends`."""
        return [BackendInfo(name=name, summary=module.SUMMARY) for name, module in BACKENDS.items()]

    def preview(self, profile: Profile) -> LaunchPlan:
        """See `EngineClient.preview`."""
        return planning.make_plan(profile)

    def save_profile(self, profile: Profile, path: Path | None = None) -> Path:
        """See `EngineClient.save_profile`."""
        return profiles.save_profile(profile, path)

    def runs(self) -> list[RunSummary]:
        """See `EngineClient.runs`."""
        return [summary for paths in all_runs() if (summary := summarise(paths))]

    async def launch(self, profile: Profile) -> str:
        """See `EngineClient.launch`."""
        plan = await asyncio.to_thread(planning.make_plan, profile)
        paths = await asyncio.to_thread(_new_run, profile.name)
        replace_file(paths.profile, profiles.to_toml(profile).encode())
        replace_file(paths.plan, msgspec.json.encode(plan))
        await start_supervisor(paths)
        return paths.run

    async def attach(self, run: str) -> LocalRun:
        """See `EngineClient.attach`."""
        return LocalRun(find_run(run))


def _new_run(name: str) -> RunPaths:
    """Makes the folder of a new run; its id is the profile's name and four letters."""
    try:
        folder = private_folder(runs_folder())
        while True:
            mark = "".join(secrets.choice(_ALPHABET) for _ in range(4))
            try:
                (folder / f"{name}-{mark}").mkdir(mode=0o700)
            except FileExistsError:
                continue
            paths = RunPaths(folder / f"{name}-{mark}")
            try:
                _ = paths.socket
            except RankdeckError:
                paths.folder.rmdir()
                raise
            return paths
    except OSError as error:
        raise CheckError(
            f"can't keep a run in {runs_folder()}: {error.strerror}", hint="point RANKDECK_HOME elsewhere"
        ) from None


def summarise(paths: RunPaths) -> RunSummary | None:
    """The line of `rankdeck ps` for a run; None where its files make none."""
    summary = read_summary(paths)
    if summary is None:
        try:
            run = stored_snapshot(paths).run
        except (SupervisorError, OSError):
            return None
        summary = RunSummary(
            run=run.run, name=run.name, state=run.state, world_size=run.world_size, backend=run.backend,
            launched_at=run.launched_at, ended_at=run.ended_at, attempt=run.attempt, step=run.step, steps=run.steps,
            loss=run.loss, reason=run.doing, reachable=False, host="",
        )  # fmt: skip
    reachable = summary.state in ENDED_WORDS or _listens(paths)
    reason = summary.reason if reachable else "its supervisor is gone; attach starts a new one"
    return msgspec.structs.replace(summary, reachable=reachable, reason=reason)


def _listens(paths: RunPaths) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(socket_of(paths)) == 0
