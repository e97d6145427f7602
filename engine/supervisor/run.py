"""The data of one run that all parts of its supervisor share."""

from __future__ import annotations

import asyncio
import contextlib
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
from engine.core.run.state import RunState, Starting
from engine.core.terminal_text import visible
from engine.core.views.view import EventLine, StallView
from engine.runs.paths import RunPaths
from engine.runs.replay import plan_now
from engine.supervisor.log import note

MOST_FAILURES, CALM_SECONDS = 5, 60.0
"""Failures in a row after which a part stays off. A part that has run for longer than `CALM_SECONDS` ends the row."""

PAUSE = 1.0
"""Seconds until a part that has failed begins again: doubled with each failure in a row."""

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


class SupervisedRun:
    """One run: its files, its plan and its state. Only the runner changes `plan` and `state`.

    Args:
        paths: of the run.
        launched: the plan as it was launched.
        state: after the events in the journal.
        story: the events so far, as sentences.
    """

    tasks: asyncio.TaskGroup
    """All tasks of this run. An exception in one is a defect, and ends the supervisor instead of leaving it stuck; `keep` runs parts without
    which the run goes on."""
    handle: Handle
    """The runner's method, by which every part reports events."""

    def __init__(self, paths: RunPaths, launched: LaunchPlan, state: RunState, story: list[EventLine]) -> None:
        self.paths, self.launched, self.state, self.story = paths, launched, state, story
        self.plan = plan_now(launched, state)
        """The plan of this attempt."""
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
