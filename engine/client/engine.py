"""`EngineClient` and `RunClient` for this machine: profiles in folders, runs in the user's state folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from engine.client.connection import Connection, host_elsewhere, socket_of, start_supervisor
from engine.client.standby import Standby
from engine.core.catalogue import BackendInfo, ProfileEntry, RecipeInfo
from engine.core.checks.preflight import Begun, Finding
from engine.core.errors import CheckError, RankdeckError, RunNotFoundError, SupervisorError, SupervisorLostError
from engine.core.failures.stacks import RankStack, story
from engine.core.metrics.bench import Result
from engine.core.plan.key_places import Places
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile
from engine.core.run.events import Scope
from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import RunSummary, Snapshot, Update
from engine.core.wire import front_end as msg
from engine.planning import make as planning
from engine.planning import profiles, recipes
from engine.runs.paths import RunPaths, Stream, private_folder, runs_folder
from engine.runs.record import read_results, read_summary, replace_file, summary_of

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""Letters of a run's id: none that is mistaken for another when read aloud or typed from a screen."""


# --- runs by name ------------------------------------------------------------------------------------------------------


def _stored_snapshot(paths: RunPaths) -> Snapshot:
    """`engine.history.stored_snapshot`, imported when a run is looked at: the first screen needs only summaries."""
    from engine.runs.replay import stored_snapshot

    return stored_snapshot(paths)


def all_runs() -> list[RunPaths]:
    """Every run that is kept, newest first."""
    try:
        entries = [entry for entry in os.scandir(runs_folder()) if not entry.name.startswith(".")]  # those are standbys
        folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
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


# --- one of them -------------------------------------------------------------------------------------------------------


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
            if (await asyncio.to_thread(_stored_snapshot, self.paths)).run.state in ENDED_WORDS:
                return None
            if host := host_elsewhere(self.paths):
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
            yield await asyncio.to_thread(_stored_snapshot, self.paths)
            return
        ended = False
        try:
            connection.write(msg.Subscribe())
            while (message := await connection.read()) is not None:
                if isinstance(message, Snapshot | Update):
                    ended = ended if message.run is None else message.run.state in ENDED_WORDS
                    yield message
        finally:
            connection.close()
        if not ended:
            last = await asyncio.to_thread(_stored_snapshot, self.paths)
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
        return await asyncio.to_thread(_stored_snapshot, self.paths)

    async def _ask(self, request: msg.Stop | msg.Restart | msg.Kill) -> msg.Answer | None:
        connection = await self._connect()
        if connection is None:
            return None
        try:
            connection.write(request)
            answer = await connection.read()
        finally:
            connection.close()
        if isinstance(answer, msg.Refused):
            raise SupervisorError(f"the supervisor of {self.run} refused: {answer.reason}")
        if not isinstance(answer, msg.Answer):
            hint = f"rankdeck status {self.run} shows whether it came through"
            raise SupervisorError(f"the supervisor of {self.run} hung up before it answered", hint=hint)
        return answer

    async def stop(self, *, at_once: bool = False) -> str:
        """See `RunClient.stop`."""
        answer = await self._ask(msg.Stop(by=user_name(), at_once=at_once))
        return answer.text if answer else "the run has ended already"

    async def restart(self, scope: Scope = "smallest") -> str:
        """See `RunClient.restart`. A run that has ended gets a new supervisor."""
        for _ in range(20):
            answer = await self._ask(msg.Restart(by=user_name(), scope=scope))
            if answer is None:
                break
            if answer.text != msg.ENDING:
                return answer.text
            await asyncio.sleep(0.25)
        words = _stored_snapshot(self.paths).run.restart
        await start_supervisor(self.paths, restart_by=user_name())
        return f"now: {words}"

    async def kill(self, rank: int, signal: int) -> str:
        """See `RunClient.kill`."""
        answer = await self._ask(msg.Kill(by=user_name(), rank=rank, signal=signal))
        if answer is None:
            raise RankdeckError(f"rank {rank} can't be signalled: {self.run} has ended")
        return answer.text

    async def stacks(self) -> list[str]:
        """See `RunClient.stacks`."""
        return story(await self.rank_stacks())

    async def rank_stacks(self) -> tuple[RankStack, ...]:
        """What every rank says of where it is.

        Raises:
            RankdeckError: the run has ended.
        """
        connection = await self._connect()
        if connection is None:
            raise RankdeckError(f"{self.run} has ended: no rank has a stack")
        try:
            connection.write(msg.AskStacks())
            answer = await connection.read()
        finally:
            connection.close()
        if not isinstance(answer, msg.Stacks):
            raise SupervisorError(f"the supervisor of {self.run} did not say what its ranks are at")
        return answer.ranks

    def log_path(self, attempt: int, rank: int, stream: Stream) -> Path:
        """See `RunClient.log_path`."""
        return self.paths.log(attempt, rank, stream)

    def results(self, attempt: int) -> list[Result]:
        """See `RunClient.results`."""
        return read_results(self.paths, attempt)

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

    def __init__(self) -> None:
        self._standby: Standby | None = None
        self._warming = threading.Lock()

    def profiles(self) -> list[ProfileEntry]:
        """See `EngineClient.profiles`."""
        return profiles.list_profiles()

    def recipes(self) -> list[RecipeInfo]:
        """See `EngineClient.recipes`."""
        return list(recipes.recipes().values())

    def backends(self) -> list[BackendInfo]:
        """See `EngineClient.backends`."""
        return planning.known_backends()

    def available(self, profile: Profile) -> list[BackendInfo]:
        """See `EngineClient.available`."""
        return planning.available_backends(profile)

    def preview(self, profile: Profile, places: Places | None = None) -> LaunchPlan:
        """See `EngineClient.preview`. `places`: where the profile's keys stand, for warnings."""
        return planning.make_plan(profile, places=places)

    def save_profile(self, profile: Profile, path: Path | None = None) -> Path:
        """See `EngineClient.save_profile`."""
        return profiles.save_profile(profile, path)

    def runs(self) -> list[RunSummary]:
        """See `EngineClient.runs`."""
        return summaries()

    async def check(
        self, profile: Profile, *, full: bool = True, places: Places | None = None
    ) -> AsyncGenerator[Begun | Finding, None]:
        """See `EngineClient.check`, and `preview` for `places`."""

        def prepare() -> AsyncGenerator[Begun | Finding, None]:
            from engine.planning import check as preflight  # which takes a few frames of the app

            return preflight.check(planning.make_plan(profile, checked=False, places=places), full=full)

        async with contextlib.aclosing(await asyncio.to_thread(prepare)) as findings:
            async for finding in findings:
                yield finding

    async def prewarm(self, profile: Profile | None) -> None:
        """See `EngineClient.prewarm`."""
        await asyncio.to_thread(self._prewarm, profile)

    def _prewarm(self, profile: Profile | None) -> None:
        with self._warming, contextlib.suppress(RankdeckError, OSError):
            wanted = None
            if profile is not None and profile.launch.warm and profile.launch.prewarm:
                plan = planning.make_plan(profile)
                if all(node.transport == "local" for node in plan.nodes):  # nobody asked for a connection yet
                    wanted = plan
            if self._standby is not None and not (wanted and self._standby.serves(wanted) and self._standby.keep()):
                self._standby.drop()
                self._standby = None
            if wanted is not None and self._standby is None:
                self._standby = Standby(wanted)

    async def launch(self, profile: Profile, places: Places | None = None) -> str:
        """See `EngineClient.launch`, and `preview` for `places`."""
        plan = await asyncio.to_thread(planning.make_plan, profile, places=places)
        paths = await asyncio.to_thread(_new_run, profile.name)
        replace_file(paths.profile, profiles.to_toml(profile).encode())
        replace_file(paths.plan, msgspec.json.encode(plan))
        standby = await asyncio.to_thread(self._take_standby)
        if standby is not None and standby.serves(plan) and await asyncio.to_thread(standby.take, paths):
            return paths.run
        if standby is not None:
            standby.drop()
        await start_supervisor(paths)
        return paths.run

    def _take_standby(self) -> Standby | None:
        with self._warming:
            standby, self._standby = self._standby, None
            return standby

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


def summaries() -> list[RunSummary]:
    """The lines of `rankdeck ps`: runs that go on or wait for somebody, then those that have ended; newest first."""
    found = [summary for paths in all_runs() if (summary := summarise(paths))]
    return sorted(found, key=lambda summary: summary.state in ENDED_WORDS)


def summarise(paths: RunPaths) -> RunSummary | None:
    """The line of `rankdeck ps` for a run; None where its files make none."""
    summary = read_summary(paths)
    if summary is None:
        try:
            summary = summary_of(_stored_snapshot(paths).run)
        except (SupervisorError, OSError):
            return None
    reachable = summary.state in ENDED_WORDS or _listens(paths)
    reason = summary.reason if reachable else "its supervisor is gone; attach starts a new one"
    return msgspec.structs.replace(summary, reachable=reachable, reason=reason)


def _listens(paths: RunPaths) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(socket_of(paths)) == 0
