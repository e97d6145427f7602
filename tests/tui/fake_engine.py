"""An engine without processes: the app's tests, and the benchmark of the app, decide what a run does and when.

`FakeRun` is the truth about one run; every `FakeClient` that is attached to it gets a snapshot and then what changes,
as from a supervisor. Log files are real files.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.backends.environment import environment_warnings
from engine.client.protocols import Compared, EngineClient, LogOrder, RunClient
from engine.core.arguments.argument import Argument, RecipeInfo
from engine.core.catalogue import BackendInfo, ImportedCommand, ProfileEntry
from engine.core.checks.findings import CHECKS, Begun, Finding, ok
from engine.core.errors import CheckError, ProfileError, RankdeckError, RunNotFoundError, SupervisorError
from engine.core.launch_commands.draft import left_out
from engine.core.metrics.bench import Result
from engine.core.metrics.series import Point, SeriesSet
from engine.core.plan.batch.slurm import Partition
from engine.core.plan.layout import parse_nodes
from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, build_plan
from engine.core.plan.profile import Profile, SlurmJob
from engine.core.plan.settings import Change, settings_of
from engine.core.run.events import Scope
from engine.core.views.comparison import Side
from engine.core.views.goodput import Goodput
from engine.core.views.history import HistoryEntry
from engine.core.views.view import (
    EventLine,
    FailureView,
    NodeView,
    RankView,
    RunNote,
    RunSummary,
    RunView,
    Snapshot,
    Update,
)
from engine.gate import CLOSED, LAUNCHED, Permit
from engine.planning.imports import import_command
from engine.planning.trust import FOREIGN
from engine.runs.log_order import OrderIndex, OrderWriter
from tests.support import parse_profile

LAUNCHED_AT = 1_750_000_000.0

RECIPES = (
    RecipeInfo(
        name="gpt",
        summary="A small GPT on a text that comes with rankdeck.",
        arguments=(
            Argument(name="steps", type="int", default=400, help="training steps"),
            Argument(name="lr", type="float", default=0.0003, help="learning rate"),
            Argument(name="text", type="str", default="", help="another text to train on"),
        ),
    ),
    RecipeInfo(name="linear", summary="Seconds; for a first try.", arguments=()),
)

BACKENDS = (
    BackendInfo(name="gloo", summary="CPU; comes with every torch"),
    BackendInfo(name="nccl", summary="NVIDIA GPUs"),
)

RUN = "quickstart-7f3a"  # the run of most tests


def profile(
    name: str, *, backend: str = "gloo", nodes: str = "localhost:4", recipe: str = "gpt", more: str = ""
) -> Profile:
    """A profile made of text, as a file would make it."""
    return parse_profile(
        f'schema = 1\nname = "{name}"\n[backend]\nname = "{backend}"\n[layout]\nnodes = "{nodes}"\n'
        f'[recipe]\nname = "{recipe}"\n{more}',
        file=f"{name}.toml",
    )


def entry(profile: Profile, folder: Path, source: str = "yours") -> ProfileEntry:
    """The profile as a file that was found."""
    return ProfileEntry(
        name=profile.name, path=folder / f"{profile.name}.toml", source=source, profile=profile, error=None
    )


def planned(profile: Profile, *, cores: int = 4) -> LaunchPlan:
    """What the real engine's preview does, without asking this machine."""
    job = profile.layout.slurm
    nodes = [f"node{number + 1}" for number in range(job.nodes)] if isinstance(job, SlurmJob) else profile.layout.nodes
    slots = parse_nodes(nodes, profile.layout.ranks_per_node)
    if profile.backend.name not in ("auto", "gloo", "nccl"):
        raise ProfileError("profile", None, "backend.name", f"there is no backend {profile.backend.name!r}")
    facts = tuple(NodeFacts(name=slot.node, cores=cores, gpus=0, python="/opt/torch/bin/python3") for slot in slots)
    settings = BackendSettings(name=profile.backend.name, env={"GLOO_SOCKET_IFNAME": "lo"}, device="cpu")
    decided = build_plan(profile, slots, facts, settings, workdir="/home/someone/work")
    return msgspec.structs.replace(decided, warnings=environment_warnings(profile, decided, {}))


class FakeRun:
    """One run, moved by the test.

    Args:
        folder: its files go here.
        run: its id.
        ranks: world size.
        now: seconds since the epoch, the time of everything that happens by `tick`.
    """

    def __init__(self, folder: Path, run: str = "quickstart-7f3a", *, ranks: int = 4, now: float = LAUNCHED_AT) -> None:
        self.folder = folder / run
        self.folder.mkdir(parents=True, exist_ok=True)
        self.now = now
        self.series = SeriesSet()
        self.events: list[EventLine] = []
        self.asked: list[tuple[Any, ...]] = []
        self.attached = 0
        self.answer: RankdeckError | None = None
        self.hold_answers: asyncio.Event | None = None
        self.results: list[Result] = []
        self.news = ""
        self.stacks = ["ranks 0-3: waiting in all_reduce", "    step  /home/someone/train.py:41"]
        self.subscribers: list[asyncio.Queue[Update | Exception | None]] = []
        self.ranks = [self._rank(rank, attempt=0) for rank in range(ranks)]
        self.view = RunView(
            run=run, name=run.rpartition("-")[0] or run, state="running", doing="", attempt=0, generation=0,
            world_size=ranks, backend="gloo", program="gpt", launched_at=now, ended_at=None, attempt_since=now,
            alive=ranks, step=0, steps=100, loss=None, throughput=None, unit="tok", checkpoint=None,
            checkpoint_at=None, failure=None, restart=f"stop the {ranks} that run and start attempt 1 of all {ranks} ranks",
            activity="", restart_kind="attempt",
            nodes=(NodeView(name="localhost", ranks=tuple(range(ranks)), link="up", reason="", since=now),),
        )  # fmt: skip

    def _rank(self, rank: int, *, attempt: int) -> RankView:
        return RankView(
            rank=rank, node="localhost", local_rank=rank, pid=4000 + 100 * attempt + rank, state="running", exit=None,
            attempt=attempt, generation=0, since=self.now, seen=self.now, unit="tok",
        )  # fmt: skip

    # --- what happens to it -------------------------------------------------------------------------------------------

    def tick(
        self, step: int, *, loss: float | None = 2.0, throughput: float | None = 2500.0, seconds: float = 1.0
    ) -> None:
        """Every living rank completes a step."""
        self.now += seconds
        points = []
        for index, rank in enumerate(self.ranks):
            if rank.state != "running":
                continue
            line = f"step {step} loss {loss}"
            self.ranks[index] = msgspec.structs.replace(
                rank, step=step, loss=loss, throughput=throughput, seen=self.now, last_line=line
            )
            points.append(Point(index, "loss", self.now, step, loss))
            points.append(Point(index, "throughput", self.now, step, throughput))
        for point in points:
            self.series.append(point)
        total = None if throughput is None else throughput * len(self.ranks)
        self.change(step=step, loss=loss, throughput=total, ranks=tuple(self.ranks), points=tuple(points))

    def fail(
        self,
        rank: int = 2,
        *,
        note: str = "SIGKILL",
        traceback: str = "",
        fix: str = "",
        followed: tuple[str, ...] = (),
    ) -> None:
        """One rank dies by SIGKILL, and the run holds."""
        self.ranks[rank] = msgspec.structs.replace(
            self.ranks[rank], state="failed", exit=-9, pid=None, note=note, since=self.now
        )
        failure = FailureView(
            rank=rank, headline=f"rank {rank} was killed by SIGKILL", traceback=traceback,
            detail="nothing that rankdeck sent; often the kernel, out of memory",
            hint="look at the memory of localhost; r starts all ranks again from the last checkpoint",
            fix=fix, followed=followed,
        )  # fmt: skip
        self.change(
            state="holding", alive=len(self.ranks) - 1, failure=failure, restart=f"stop the {len(self.ranks) - 1} that run and start attempt {self.view.attempt + 1} of all {len(self.ranks)} ranks",
            ranks=(self.ranks[rank],), event=(f"rank {rank} failed: {note}", "error"),
        )  # fmt: skip

    def spend(self, **seconds: Any) -> None:
        self.change(goodput=Goodput(as_of=self.now, **seconds))

    def offer_rejoin(self, rank: int = 2) -> None:
        """The script can take the dead rank back: the others wait for it."""
        others = [msgspec.structs.replace(one, note=f"waits for rank {rank}") for one in self.ranks if one.rank != rank]
        for one in others:
            self.ranks[one.rank] = one
        self.change(
            restart=f"rejoin rank {rank}; the other {len(others)} keep running", restart_kind="rejoin",
            restart_ranks=(rank,), ranks=tuple(others),
        )  # fmt: skip

    def rejoin(self, rank: int = 2) -> None:
        """The dead rank came back."""
        generation = self.view.generation + 1
        self.ranks = [msgspec.structs.replace(one, generation=generation, note="") for one in self.ranks]
        self.ranks[rank] = msgspec.structs.replace(self._rank(rank, attempt=self.view.attempt), generation=generation)
        self.change(
            state="running", generation=generation, alive=len(self.ranks), failure=None, ranks=tuple(self.ranks),
            restart_kind="attempt", restart_ranks=(),
            restart=f"stop the {len(self.ranks)} that run and start attempt {self.view.attempt + 1} of all {len(self.ranks)} ranks",
            event=(f"generation {generation}: rank {rank} started", "info"),
        )  # fmt: skip

    def begin_attempt(self, attempt: int) -> None:
        """All ranks are started anew."""
        self.ranks = [self._rank(rank, attempt=attempt) for rank in range(len(self.ranks))]
        self.change(
            state="running", attempt=attempt, attempt_since=self.now, alive=len(self.ranks), failure=None,
            ranks=tuple(self.ranks), event=(f"attempt {attempt} began", "info"),
        )  # fmt: skip

    def end(self, word: Literal["succeeded", "failed", "stopped"] = "succeeded") -> None:
        """The run is over; every subscription ends."""
        state: Literal["exited", "stopped"] = "exited" if word == "succeeded" else "stopped"
        self.ranks = [msgspec.structs.replace(rank, state=state, exit=0, pid=None) for rank in self.ranks]
        self.change(state=word, alive=0, ended_at=self.now, restart="", restart_kind="none", ranks=tuple(self.ranks))
        self._send(None)

    def change(
        self,
        *,
        ranks: tuple[RankView, ...] = (),
        points: tuple[Point, ...] = (),
        event: tuple[str, str] | None = None,
        **fields: Any,
    ) -> None:
        """Changes fields of the run's view and tells every subscriber."""
        self.view = msgspec.structs.replace(self.view, **fields)
        events: tuple[EventLine, ...] = ()
        if event is not None:
            events = (EventLine(seq=len(self.events), at=self.now, text=event[0], level=event[1]),)
            self.events.extend(events)
        self._send(Update(run=self.view, ranks=ranks, points=points, events=events))

    def points(self, count: int, *keys: str) -> None:
        """Rank 0 reports so many points of each curve."""
        steps = range(count)
        self.change(points=tuple(Point(0, key, self.now, step, float(step)) for step in steps for key in keys))

    def break_connections(self) -> None:
        """The supervisor's socket goes away under every client."""
        self._send(SupervisorError("the connection to the supervisor broke"))

    def _send(self, message: Update | Exception | None) -> None:
        for queue in self.subscribers:
            queue.put_nowait(message)

    def log_path(self, attempt: int, rank: int, stream: str) -> Path:
        """As `engine.paths` names it."""
        return self.folder / f"attempt_{attempt}" / f"rank_{rank}.{stream}"

    def write(self, rank: int, text: str, *, attempt: int = 0, stream: str = "out") -> None:
        """What a rank prints."""
        path = self.log_path(attempt, rank, stream)
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        order = OrderWriter(path.parent / "order")
        order.note(rank, stream == "err", path.stat().st_size, self.now)
        order.close()

    def snapshot(self) -> Snapshot:
        """Everything, now."""
        return Snapshot(
            run=self.view,
            ranks=tuple(self.ranks),
            series=tuple(SeriesSet(self.series.dump()).dump()),
            events=tuple(self.events),
        )

    def summary(self) -> RunSummary:
        """Its line of `rankdeck ps`."""
        view = self.view
        return RunSummary(
            run=view.run, name=view.name, state=view.state, world_size=view.world_size, backend=view.backend,
            launched_at=view.launched_at, ended_at=view.ended_at, attempt=view.attempt, step=view.step,
            steps=view.steps, loss=view.loss, reason="" if view.failure is None else view.failure.headline,
            reachable=True, host="login02", stalled=view.stall is not None, swept=view.swept,
        )  # fmt: skip


class FakeClient:
    """One front end's connection to a `FakeRun`."""

    def __init__(self, truth: FakeRun) -> None:
        self.truth = truth
        self.run = truth.view.run
        self.folder = truth.folder
        self.closed = False

    async def subscribe(self) -> AsyncIterator[Snapshot | Update]:
        queue: asyncio.Queue[Update | Exception | None] = asyncio.Queue()
        yield self.truth.snapshot()
        if self.truth.view.ended_at is not None:
            return
        self.truth.subscribers.append(queue)
        try:
            while (message := await queue.get()) is not None:
                if isinstance(message, Exception):
                    raise message
                yield message
        finally:
            self.truth.subscribers.remove(queue)

    async def _answered(self, *request: Any) -> str:
        self.truth.asked.append(request)
        if self.truth.hold_answers is not None:
            await self.truth.hold_answers.wait()
        if self.truth.answer is not None:
            raise self.truth.answer
        return f"{request[0]}: done"

    async def stop(self, *, at_once: bool = False) -> str:
        return await self._answered("stop", at_once)

    async def restart(
        self, scope: Scope = "smallest", *, attempt: int | None = None, generation: int | None = None
    ) -> str:
        return await self._answered("restart")

    async def kill(self, rank: int, signal: int, *, pid: int | None = None) -> str:
        return await self._answered("kill", rank, signal, pid)

    async def stacks(self) -> list[str]:
        await self._answered("stacks")
        return list(self.truth.stacks)

    def log_path(self, attempt: int, rank: int, stream: Literal["out", "err"]) -> Path:
        return self.truth.log_path(attempt, rank, stream)

    def log_order(self, attempt: int) -> LogOrder:
        return OrderIndex(self.folder / f"attempt_{attempt}" / "order")

    def news(self) -> str:
        return self.truth.news

    def results(self, attempt: int) -> list[Result]:
        return list(self.truth.results)

    async def close(self) -> None:
        self.closed = True


class FakeEngine:
    """This machine, as a test wants it. `folder`: where profiles and runs pretend to be; runs' logs really are there. `entries`: the profiles; by
    default one shipped and one of the user's own."""

    def __init__(self, folder: Path, entries: list[ProfileEntry] | None = None) -> None:
        self.folder = folder
        self.entries = entries if entries is not None else [
            entry(profile("quickstart"), folder, "shipped"),
            entry(profile("mine", nodes="localhost:2", recipe="linear"), folder),
        ]  # fmt: skip
        self.live: dict[str, FakeRun] = {}
        self.launched: list[Profile] = []
        self.trusted: list[ProfileEntry] = []
        self.prewarmed: list[Profile | None] = []
        self.folders: list[Path] = []
        self.defaults: dict[str, Any] = {}
        self.settings: dict[tuple[str, ...], object] = {}
        self.saved: list[tuple[Profile, Path | None]] = []
        self.clients: list[FakeClient] = []
        self.launch_error: RankdeckError | None = None
        self.attach_errors: list[RankdeckError] = []
        self.hold_launch: asyncio.Event | None = None
        self.nodes: tuple[str, ...] = ("gpu01", "gpu02")
        self.findings: list[Finding] = []
        self.hold_check: asyncio.Event | None = None
        self.check_error: RankdeckError | None = None
        self.checks = self.checks_closed = 0
        self.notes: dict[str, RunNote] = {}
        self.best: dict[str, dict[str, float]] = {}
        self.troubles: dict[str, str] = {}
        """Why backends can't run."""
        self.declared: dict[str, tuple[Argument, ...]] = {}
        self.free: list[Partition] | None = None
        """Slurm's partitions; None: there is no Slurm."""
        """What scripts declare."""

    def add_run(self, name: str = "quickstart-7f3a", **options: Any) -> FakeRun:
        """A run that exists already."""
        self.live[name] = FakeRun(self.folder, name, **options)
        return self.live[name]

    def profiles(self) -> list[ProfileEntry]:
        return list(self.entries)

    def recipes(self) -> list[RecipeInfo]:
        return list(RECIPES)

    def script(self, recipe: str) -> str:
        return f'"""The script of {recipe}."""\n\nimport os\n\n\ndef main() -> None:\n    print("{"long " * 40}end")\n'

    def arguments(self, script: str, folder: str) -> tuple[Argument, ...]:
        return self.declared.get(script, ())

    def backends(self) -> list[BackendInfo]:
        return list(BACKENDS)

    def available(self, profile: Profile, permit: Permit) -> list[BackendInfo]:
        return [msgspec.structs.replace(info, trouble=self.troubles.get(info.name, "")) for info in BACKENDS]

    def partitions(self) -> list[Partition]:
        if self.free is None:
            raise CheckError("sinfo can't be run: No such file or directory", hint="is this a login node?")
        return self.free

    def permit(self, entry: ProfileEntry | None) -> Permit:
        return LAUNCHED if entry is None or entry in self.trusted or entry.source not in FOREIGN else CLOSED

    def trust(self, entry: ProfileEntry) -> Permit:
        self.trusted.append(entry)
        return LAUNCHED

    def preview(self, profile: Profile, permit: Permit) -> LaunchPlan:
        return msgspec.structs.replace(planned(profile), is_looked_up=permit.may_start)

    def imported(self, command: str) -> ImportedCommand:
        found = import_command([command], is_whole=False)
        return ImportedCommand(found.profile, tuple(left_out(found.notes)))

    def save_profile(self, profile: Profile, path: Path | None = None) -> Path:
        self.saved.append((profile, path))
        path = path or self.folder / "own" / f"{profile.name}.toml"
        self.entries = [known for known in self.entries if known.name != profile.name]
        self.entries.append(ProfileEntry(name=profile.name, path=path, source="yours", profile=profile, error=None))
        return path

    def keep_settings(self, values: Mapping[tuple[str, ...], object]) -> Path:
        self.settings |= values
        return self.folder / "config.toml"

    def site_defaults(self) -> Mapping[str, Any]:
        return self.defaults

    def profile_folders(self) -> list[Path]:
        return [Path(".rankdeck").absolute(), self.folder / "own", *self.folders]

    def add_profile_folder(self, folder: str) -> None:
        self.folders.append(Path(folder))

    def launched_profile(self, run: str) -> Profile:
        return profile(run.rpartition("-")[0], nodes="localhost:3")

    def runs(self) -> list[RunSummary]:
        return [run.summary() for run in reversed(self.live.values())]

    def history(self) -> list[HistoryEntry]:
        found: list[HistoryEntry] = []
        for run in self.live.values():
            summary = run.summary()
            changes = (Change("--lr", "0.1", "0.2"),) if found else None
            note = self.notes.get(summary.run, RunNote())
            found.append(
                HistoryEntry(
                    summary=summary,
                    seconds=60.0,
                    metrics={},
                    changes=changes,
                    size=1 << 20,
                    note=note,
                    best=self.best.get(summary.run, {}),
                )
            )
        return found[::-1]

    def write_note(self, run: str, note: RunNote) -> None:
        self.notes[run] = note

    def remove_run(self, run: str) -> None:
        del self.live[run]

    def compared(self, run: str) -> Compared:
        own = profile("job", more=f'args = ["--lr", "{run}"]\n')
        side = Side(run=run, results={"loss": 1.5}, settings=settings_of(own), plan=planned(own))
        return Compared(side, self.live[run].snapshot())

    async def check(
        self, profile: Profile, permit: Permit, *, full: bool = True
    ) -> AsyncGenerator[Begun | Finding, None]:
        permit.admit()
        self.checks += 1
        try:
            if self.check_error is not None:
                raise self.check_error
            yield Begun(nodes=self.nodes)
            told = {(one.node, one.check): one for one in self.findings}
            for node in self.nodes:
                for check in CHECKS:
                    yield told.get((node, check)) or ok(node, check, f"{check} of {node} is well")
                if self.hold_check is not None:
                    await self.hold_check.wait()
        finally:
            self.checks_closed += 1

    async def prewarm(self, profile: Profile | None, permit: Permit = CLOSED) -> None:
        self.prewarmed.append(profile)

    async def launch(self, profile: Profile) -> str:
        if self.hold_launch is not None:
            await self.hold_launch.wait()
        if self.launch_error is not None:
            raise self.launch_error
        self.launched.append(profile)
        return self.add_run(f"{profile.name}-{len(self.launched):04x}", now=time.time()).view.run

    async def attach(self, run: str) -> RunClient:
        if self.attach_errors:
            raise self.attach_errors.pop(0)
        if run not in self.live:
            raise RunNotFoundError(f"no run {run!r}", hint="rankdeck ps --all lists them")
        self.live[run].attached += 1
        client = FakeClient(self.live[run])
        self.clients.append(client)
        return client


_engine: type[EngineClient] = FakeEngine
