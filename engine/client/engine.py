"""`EngineClient` for this machine: profiles in folders, runs in the user's state folder; and with `--read-only`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from engine.client.jobs import runs_and_jobs
from engine.client.launch import begin_launch
from engine.client.protocols import Compared
from engine.client.run import LocalRun
from engine.client.standby import Standby
from engine.client.starting import start_supervisor
from engine.core.arguments.argument import Argument, RecipeInfo
from engine.core.catalogue import BackendInfo, ImportedCommand, ProfileEntry
from engine.core.checks.findings import Begun, Finding
from engine.core.errors import RankdeckError, SupervisorError, UsageError
from engine.core.plan.batch.slurm import Partition
from engine.core.plan.document.places import Places
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile
from engine.core.plan.standby import can_stand_by
from engine.core.views.history import HistoryEntry
from engine.core.views.view import RunNote, RunSummary
from engine.gate import CLOSED, Permit
from engine.planning import make as planning
from engine.planning import profile_paths, profiles, recipes, trust
from engine.planning.batch import slurm
from engine.planning.programs import arguments_of
from engine.planning.site import read_site
from engine.runs import settings
from engine.runs.listing import find_run
from engine.runs.record import read_plan, write_note

if TYPE_CHECKING:
    from engine.client.history import History


class LocalEngine:
    """See `EngineClient`."""

    def __init__(self) -> None:
        self._standby: Standby | None = None
        self._warming = threading.Lock()
        self._history: History | None = None

    def profiles(self) -> list[ProfileEntry]:
        return profiles.list_profiles()

    def recipes(self) -> list[RecipeInfo]:
        return list(recipes.recipes().values())

    def script(self, recipe: str) -> str:
        return recipes.script_of(recipes.find_recipe(recipe).name).read_text(encoding="utf-8")

    def arguments(self, script: str, folder: str) -> tuple[Argument, ...]:
        return arguments_of(Path(folder).expanduser() / Path(script).expanduser())

    def backends(self) -> list[BackendInfo]:
        return planning.known_backends()

    def permit(self, entry: ProfileEntry | None) -> Permit:
        return trust.permit_of(entry)

    def trust(self, entry: ProfileEntry) -> Permit:
        return trust.trust(entry)

    def available(self, profile: Profile, permit: Permit) -> list[BackendInfo]:
        return planning.available_backends(profile, permit)

    def partitions(self) -> list[Partition]:
        return slurm.partitions()

    def preview(self, profile: Profile, permit: Permit, places: Places | None = None) -> LaunchPlan:
        """`places`: file and line of the profile's keys, for warnings."""
        return planning.make_plan(profile, permit, places=places)

    def imported(self, command: str) -> ImportedCommand:
        from engine.core.launch_commands.draft import left_out
        from engine.planning.imports import import_command  # it knows six launchers

        found = import_command([command], is_whole=False)
        return ImportedCommand(found.profile, tuple(left_out(found.notes)))

    def save_profile(self, profile: Profile, path: Path | None = None) -> Path:
        return profiles.save_profile(profile_paths.as_saved(profile, path), path)

    def keep_settings(self, values: Mapping[tuple[str, ...], object]) -> Path:
        return settings.keep_settings(values)

    def add_profile_folder(self, folder: str) -> None:
        settings.change_settings(lambda now: {("profiles",): [folder, *now.profiles]})

    def profile_folders(self) -> list[Path]:
        return [folder for _, folder in profiles.folders()]

    def site_defaults(self) -> Mapping[str, Any]:
        return read_site().site.defaults

    def runs(self) -> list[RunSummary]:
        return runs_and_jobs()

    def history(self) -> list[HistoryEntry]:
        from engine.client.history import History  # reads files that no other list needs

        self._history = self._history or History()
        return self._history.read()

    def write_note(self, run: str, note: RunNote) -> None:
        write_note(find_run(run), note)

    def remove_run(self, run: str) -> None:
        from engine.runs.ends.removal import remove_run

        remove_run(find_run(run))

    def compared(self, run: str) -> Compared:
        from engine.client.history import read_side

        return read_side(find_run(run))

    def launched_profile(self, run: str) -> Profile:
        paths = find_run(run)
        profile, plan = profiles.read_launched(paths.profile), read_plan(paths)
        launch = msgspec.structs.replace(profile.launch, workdir=plan.workdir)
        if launch.python and os.sep in launch.python:
            launch = msgspec.structs.replace(launch, python=plan.python)
        recipe = profile.recipe
        if recipe.script is not None:
            recipe = msgspec.structs.replace(recipe, script=plan.program.target)
        return msgspec.structs.replace(profile, launch=launch, recipe=recipe)

    async def check(
        self, profile: Profile, permit: Permit, *, full: bool = True, places: Places | None = None
    ) -> AsyncGenerator[Begun | Finding, None]:

        def prepare() -> AsyncGenerator[Begun | Finding, None]:
            from engine.planning import check as node_check  # which takes a few frames of the app

            plan = planning.make_plan(profile, permit, checked=False, places=places)
            permit.admit()
            return node_check.check(plan, permit, full=full)

        async with contextlib.aclosing(await asyncio.to_thread(prepare)) as findings:
            async for finding in findings:
                yield finding

    async def prewarm(self, profile: Profile | None, permit: Permit = CLOSED) -> None:
        await asyncio.to_thread(self._prewarm, profile, permit)

    def _prewarm(self, profile: Profile | None, permit: Permit) -> None:
        with self._warming, contextlib.suppress(RankdeckError, OSError):
            wanted = None
            if profile is not None and profile.launch.warm and profile.launch.prewarm:
                plan = planning.make_plan(profile, permit)
                # Nobody asked for a connection to another node yet, and the site may not want templates.
                if plan.launch.prewarm and plan.is_looked_up and can_stand_by(plan):
                    trust.admit(permit, plan, code=False)
                    wanted = plan
            if self._standby is not None and not (wanted and self._standby.serves(wanted) and self._standby.keep()):
                self._standby.drop()
                self._standby = None
            if wanted is not None and self._standby is None:
                self._standby = Standby.start(wanted, permit)

    async def launch(self, profile: Profile, places: Places | None = None) -> str:
        begun = await asyncio.to_thread(begin_launch, profile, places, own_standby=self._give_standby)
        if not begun.is_supervised:
            await asyncio.to_thread(start_supervisor, begun.paths)
        return begun.paths.run

    def _give_standby(self) -> Standby | None:
        with self._warming:
            standby, self._standby = self._standby, None
        return standby

    async def attach(self, run: str) -> LocalRun:
        return LocalRun(find_run(run))


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise UsageError("rankdeck was opened with --read-only", hint="open it without --read-only to change something")


async def _refuse_later(*_: Any, **__: Any) -> NoReturn:
    _refuse()


class ReadOnlyEngine(LocalEngine):
    """See `EngineClient`."""

    save_profile = keep_settings = trust = write_note = remove_run = _refuse
    launch = _refuse_later

    async def prewarm(self, profile: Profile | None, permit: Permit = CLOSED) -> None:
        """Starts nothing."""

    async def attach(self, run: str) -> LocalRun:
        return ReadOnlyRun(find_run(run))


class ReadOnlyRun(LocalRun):
    """A run that is only watched."""

    stop = restart = kill = _refuse_later

    async def _start(self) -> None:
        hint = "rankdeck attach starts a new one, without --read-only"
        raise SupervisorError(f"the supervisor of {self.run} is gone", hint=hint)
