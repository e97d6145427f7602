"""The data of one run that all parts of its supervisor share."""

import asyncio
import contextlib
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

from engine.core.failures.collectives import Wait
from engine.core.metrics.health import RankHealth
from engine.core.metrics.resources import GpuUse, ProcessUse
from engine.core.plan.plan import LaunchPlan
from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.health_events import Kills
from engine.core.run.state import RunState, Starting, Stopping
from engine.core.views.view import EventLine, JobView, StallView
from engine.runs.paths import RunPaths
from engine.runs.replay import plan_now
from engine.supervisor.log import first_words, note

MOST_FAILURES, CALM_SECONDS = 5, 60.0  # failures in a row after which a part stays off, and a life that ends the row
PAUSE = 1.0  # seconds until a part that has failed begins again: doubled with each failure in a row

WATCH_PERIOD = 1.0
"""Seconds between two looks of a watch. Watches count their looks instead of time, because a pause of this process is not the ranks' delay."""

START_TIME = 1.0  # seconds in which ranks of a template start; work that would delay them waits so long
MAX_WARNING = 400  # characters of a warning
Handle = Callable[[AnyEvent], str | None]  # Processes an event. Returns why it has no effect, or None if it has.


class Watch(Protocol):
    """Looks at a run from time to time, and reports what it notices."""

    def look(self, now: float) -> None:
        """Looks once, in less than a millisecond. `now`: seconds since the epoch."""


async def look_regularly(watch: Watch, period: float = WATCH_PERIOD) -> None:
    """Lets a watch look once in `period` seconds, until it is cancelled."""
    while True:
        await asyncio.sleep(period)
        watch.look(time.time())


class SupervisedRun:
    """One run: its files, its plan and its state. Others read its fields; they write by its methods. Only the runner changes `plan` and `state`.

    Args:
        launched: the plan as it was launched.
        state: after the events in the journal.
        story: the events so far, as sentences.
        handle: the runner's method, by which every part reports events.
        tasks: all tasks of this run. An exception in one is a defect, and ends the supervisor instead of leaving it stuck; `keep` runs
            parts without which the run goes on.
    """

    def __init__(
        self,
        paths: RunPaths,
        launched: LaunchPlan,
        state: RunState,
        story: list[EventLine],
        handle: Handle,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.paths, self.launched, self.state, self.story = paths, launched, state, story
        self.handle, self.tasks = handle, tasks
        self.plan = plan_now(launched, state)
        """The plan of this attempt."""
        self._changed_ranks: set[int] = set(range(launched.world_size))
        """Ranks whose views are out of date."""
        self.tails: dict[int, bytes] = {}
        """The end of the stderr of ranks that have failed."""
        self.gpu_use: dict[int, GpuUse] = {}
        """The newest GPU use of each rank."""
        self.process_use: dict[int, ProcessUse] = {}
        """The newest resource use of each rank's process."""
        self.health: dict[int, RankHealth] = {}
        """Problems of ranks that are alive."""
        self.stall: StallView | None = None
        self.waits: tuple[Wait, ...] = ()
        """Which ranks waited for which, as torch has recorded it."""
        self.job: JobView | None = None
        """The job that the run is in, as it was when Slurm was asked."""
        self.kills = Kills()
        self.ended = asyncio.Event()
        self.disk_trouble: OSError | None = None
        """Why a file of the run could not be written; None: all can. It names the path."""
        self.saves: dict[str, str] = {}
        """Each node's save for which the stop ladder waits, in words; empty: it has waited."""
        self.no_room: dict[str, str] = {}
        """Nodes where ranks or stores wait for space on the disk before they start, with the folder and the reason."""

    # --- what front ends see ------------------------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        """Whether views are out of date."""
        return bool(self._changed_ranks)

    def note_change(self, *ranks: int) -> None:
        """Notes that the views of ranks are out of date; without ranks, the view of the run."""
        self._changed_ranks.update(ranks or (0,))  # a snapshot of any rank has the run too

    def take_changes(self) -> list[int]:
        """Returns the ranks whose views are out of date, once."""
        changed = sorted(self._changed_ranks)
        self._changed_ranks.clear()
        return changed

    def take_process_use(self, rank: int, use: ProcessUse) -> None:
        """Takes the resources that a rank's process uses now."""
        if use != self.process_use.get(rank):
            self.process_use[rank] = use
            self.note_change(rank)

    def take_gpu_use(self, rank: int, use: GpuUse | None) -> None:
        """Takes the GPU use of a rank; None: it is unknown."""
        if use == self.gpu_use.get(rank):
            return
        self.note_change(rank)
        if use is None:
            del self.gpu_use[rank]
        else:
            self.gpu_use[rank] = use

    def forget_use(self, ranks: Sequence[int]) -> None:
        """Forgets the resources that ranks use: the link to their node has changed."""
        self.note_change(*ranks)
        for rank in ranks:
            self.gpu_use.pop(rank, None)
            self.process_use.pop(rank, None)

    def show_health(self, health: dict[int, RankHealth], stall: StallView | None) -> None:
        """Shows the problems of ranks. An entry that is the same as before makes no new view."""
        changed = [rank for rank in health.keys() | self.health.keys() if health.get(rank) != self.health.get(rank)]
        if changed:
            self.note_change(*changed)
        self.health, self.stall = health, stall

    def take_waits(self, waits: tuple[Wait, ...]) -> None:
        if waits != self.waits:
            self.waits = waits
            self.note_change()

    def drop_explanations(self) -> None:
        """Forgets what failures are explained by, which can't be read, or is of an earlier attempt."""
        self.tails.clear()
        self.waits = ()

    # --- disks --------------------------------------------------------------------------------------------------------

    def note_disk_trouble(self, error: OSError) -> None:
        """A file of the run could not be written. The watch of files writes what waits as soon as there is space."""
        self.disk_trouble = error

    @property
    def disk_words(self) -> str:
        """Why files of the run can't be written, for people; empty if they can."""
        error = self.disk_trouble
        return f"{error.strerror}: {error.filename}; the run continues" if error is not None else ""

    @property
    def room_words(self) -> str:
        """The nodes where ranks or stores wait for space on a disk, in words; empty: none."""
        if not isinstance(self.state.phase, Starting):
            return ""
        return "; ".join(f"{node} waits for space on its disk, {where}" for node, where in self.no_room.items())

    @property
    def save_words(self) -> str:
        """The save for which the stop ladder waits, in words; empty: none."""
        return next(filter(None, self.saves.values()), "") if isinstance(self.state.phase, Stopping) else ""

    @property
    def own_words(self) -> str:
        """The work of this process besides that of ranks, in words; empty: none."""
        return "; ".join(filter(None, (self.disk_words, self.room_words, self.save_words)))

    @property
    def head(self) -> str:
        """The node that hosts the store."""
        return self.plan.nodes[0].name

    def ranks_of(self, node: str) -> tuple[int, ...]:
        """The ranks that the plan places on a node."""
        return next(planned.ranks for planned in self.plan.nodes if planned.name == node)

    def check_ranks(self, node: str, ranks: Iterable[int]) -> None:
        """Raises ValueError if a node reports about a rank that is not its own."""
        for rank in ranks:
            if not (0 <= rank < self.plan.world_size and self.plan.places[rank].node == node):
                raise ValueError(f"rank {rank} is not on {node}")

    def warn(self, node: str, check: str, text: str, *, fails: bool = False) -> None:
        """Shows a warning about a node. `check`: the subject of the warning, in one word. `fails`: whether ranks will surely fail."""
        self.handle(ev.NodeWarned(at=time.time(), node=node, check=check, text=text, fails=fails))

    def take_failed_reading(self, node: str, what: str, error: Exception) -> None:
        """Reports that something that came from ranks could not be read: the run goes on without it. `node`: where it came from. `what`:
        the content, with a verb: `no numbers are read from stdout`. `error`: what reading it raised."""
        note("".join(traceback.format_exception(error)))
        self.warn(node, "output", f"{what}: {first_words(error)}"[:MAX_WARNING])

    async def keep(self, part: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a part of this supervisor until it is cancelled. A defect costs only what the part was doing: it begins again, after a pause.

        A part that fails `MOST_FAILURES` times in a row stays off, and the run says so.

        Args:
            part: its name, in messages.
            work: what it does, which runs until it is cancelled.
        """
        failures = 0
        while failures < MOST_FAILURES:
            began = time.monotonic()
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - a defect, which is reported
                failures = 1 if time.monotonic() - began > CALM_SECONDS else failures + 1
                note(f"{part} has failed:\n{''.join(traceback.format_exception(error))}")
                if failures == MOST_FAILURES:
                    with contextlib.suppress(Exception):  # the defect may be there
                        self.take_failed_reading(self.head, f"{part} has failed {failures} times, and stays off", error)
            await asyncio.sleep(PAUSE * 2**failures / 2)

    def start_attempt(self, state: RunState) -> None:
        """Clears what belongs to the attempt before."""
        self.drop_explanations()
        self.gpu_use.clear()
        self.process_use.clear()
        self.health, self.stall = {}, None
        self.saves.clear()
        self.take_plan(state)

    def take_plan(self, state: RunState) -> None:
        """Takes another backend or other nodes of a state into the plan."""
        self.plan = plan_now(self.launched, state)
