"""The data of one run that all parts of its supervisor share."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from engine.core.failures.collectives import Wait
from engine.core.metrics.gpu_use import GpuUse
from engine.core.metrics.health import RankHealth
from engine.core.metrics.process_use import ProcessUse
from engine.core.plan.plan import LaunchPlan
from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.kills import Kills
from engine.core.run.parts import Part, part_words
from engine.core.run.state import RunState, Starting
from engine.core.terminal_text import visible
from engine.core.views.view import EventLine, StallView
from engine.runs.paths import RunPaths
from engine.runs.replay import plan_now
from engine.supervisor.crash_marks import CrashMarks
from engine.supervisor.log import note

CONTAINED_AFTER = 2
"""Supervisors in a row that an exception in one of their tasks has ended; the next one goes on without the task that fails. The first ones
end, because the next one begins every task anew, and nothing stays half done."""

PAUSE = 1.0
"""Seconds until a part that has failed begins again."""

WATCH_PERIOD = 1.0
"""Seconds between two looks of a watch. Watches count their looks instead of time, because a pause of this process is not the ranks' delay."""

START_TIME = 1.0
"""Seconds in which ranks of a template start. Work that can wait waits so long, because it would delay them."""

MAX_WARNING = 400
"""Characters of a warning."""

Handle = Callable[[AnyEvent], str | None]
"""Processes an event. Returns why it has no effect, or None if it has."""


async def every(period: float, look: Callable[[], None]) -> None:
    """Calls `look` once a period, until it is cancelled.

    Args:
        period: seconds before each call.
        look: one look of a watch.
    """
    while True:
        await asyncio.sleep(period)
        look()


class ContainingTasks(asyncio.TaskGroup):
    """Tasks of a run whose supervisors before have failed: an exception in one is reported, and ends no other one.

    Args:
        on_failure: called with the name of a task and its exception.
    """

    def __init__(self, on_failure: Callable[[str, Exception], None]) -> None:
        super().__init__()
        self._on_failure = on_failure

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """As for every task group."""
        return super().create_task(self._contain(coro, name or ""), name=name, context=context)

    async def _contain(self, work: Coroutine[Any, Any, Any], name: str) -> Any:
        try:
            return await work
        except Exception as error:  # noqa: BLE001 - a defect, which is reported
            self._on_failure(name, error)


class SupervisedRun:
    """One run: its files, its plan and its state. Only the runner changes `plan` and `state`.

    Args:
        paths: of the run.
        launched: the plan as it was launched.
        state: after the events in the journal.
        story: the events so far, as sentences.
        marks: in which part this supervisor is; None: nobody wants to know.
    """

    tasks: asyncio.TaskGroup
    """All tasks of this run. An exception in one is a defect, and ends the supervisor instead of leaving it stuck, unless that has not helped
    before; `keep` runs parts without which the run goes on."""
    handle: Handle
    """The runner's method, by which every part reports events."""

    def __init__(
        self,
        paths: RunPaths,
        launched: LaunchPlan,
        state: RunState,
        story: list[EventLine],
        marks: CrashMarks | None = None,
    ) -> None:
        self.paths, self.launched, self.state, self.story = paths, launched, state, story
        self.plan = plan_now(launched, state)
        """The plan of this attempt."""
        self.marks = marks or CrashMarks()
        self.changed_ranks: set[int] = set(range(launched.world_size))
        """Ranks whose views are out of date."""
        self.tails: dict[int, bytes] = {}
        """The end of the stderr of ranks that have failed."""
        self.gpu_use: dict[int, GpuUse] = {}
        """The newest GPU use of each rank."""
        self.process_use: dict[int, ProcessUse] = {}
        """What the process of each rank used last."""
        self.health: dict[int, RankHealth] = {}
        """What is wrong with ranks that are alive."""
        self.stall: StallView | None = None
        self.waits: tuple[Wait, ...] = ()
        """Which ranks waited for which, as torch has recorded it."""
        self.kills = Kills()
        self.ended = asyncio.Event()
        self.disk_trouble: OSError | None = None
        """Why a file of the run could not be written; None: all can. It names the path. The watch of files takes it back."""
        self.no_room: dict[str, str] = {}
        """Nodes where ranks or stores wait for space on the disk before they start, with the folder and the reason."""

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
    def head(self) -> str:
        """The node that hosts the store."""
        return self.plan.nodes[0].name

    def ranks_of(self, node: str) -> tuple[int, ...]:
        """The ranks that the plan places on a node."""
        return next(planned.ranks for planned in self.plan.nodes if planned.name == node)

    def check_rank(self, node: str, rank: int) -> None:
        """Raises ValueError if a node reports about a rank that is not its own."""
        if not (0 <= rank < self.plan.world_size and self.plan.places[rank].node == node):
            raise ValueError(f"rank {rank} is not on {node}")

    def take_failed_reading(self, node: str, what: str, error: Exception) -> None:
        """Reports that something that came from ranks could not be read: the run goes on without it.

        Args:
            node: where it came from.
            what: the content, with a verb: `no numbers are read from stdout`.
            error: what reading it raised.
        """
        note("".join(traceback.format_exception(error)))
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        text = visible(" ".join(f"{what}: {type(error).__name__}: {error}".split()))[:MAX_WARNING]
        self.handle(ev.NodeWarned(at=time.time(), node=node, check="output", text=text, fails=False))

    def has(self, part: Part) -> bool:
        """Whether a part is not left out."""
        return part not in self.state.parts_left_out

    def new_tasks(self) -> asyncio.TaskGroup:
        """The group for `tasks`."""
        if self.marks.failures < CONTAINED_AFTER:
            return asyncio.TaskGroup()
        return ContainingTasks(self._take_failed_task)

    def _take_failed_task(self, name: str, error: Exception) -> None:
        with contextlib.suppress(Exception):  # the defect may be there
            self.take_failed_reading(self.head, f"{name or 'a task'} has failed again, and is left out", error)

    async def keep(self, part: Part, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a part of this supervisor until it is cancelled. A defect costs only what the part was doing: it begins again.

        A part that has ended two supervisors is left out, until the user asks for a restart.

        Args:
            part: its id.
            work: what it does, which runs until it is cancelled.
        """
        has_failed = False
        while True:
            try:
                if self.has(part):
                    await self.marks.run(part, work())
            except Exception as error:  # noqa: BLE001 - a defect, which is reported
                if not has_failed:
                    has_failed = True
                    with contextlib.suppress(Exception):  # the defect may be there
                        self.take_failed_reading(self.head, f"{part_words(part)} has failed, and starts again", error)
            await asyncio.sleep(PAUSE)

    def start_attempt(self, state: RunState) -> None:
        """Clears what belongs to the attempt before."""
        self.tails.clear()
        self.gpu_use.clear()
        self.process_use.clear()
        self.waits = ()
        self.health.clear()
        self.stall = None
        self.take_plan(state)

    def take_plan(self, state: RunState) -> None:
        """Takes another backend or other nodes of a state into the plan."""
        self.plan = plan_now(self.launched, state)
