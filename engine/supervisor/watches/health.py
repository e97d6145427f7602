"""Looks once a second for ranks that hang or lag and for curves that go wrong; asks hanging ranks who waits for whom."""

import asyncio
import itertools
import time
from collections.abc import Sequence

import msgspec

from engine.core.failures.collectives import Wait, are_stuck
from engine.core.failures.stacks import Fold, RankStack, doings, fold, own_frame, place, waits
from engine.core.metrics.health import EARLY, Health, RankHealth, RankMark
from engine.core.run import events as ev
from engine.core.run.state import Alive, Running
from engine.core.views.view import StallView
from engine.supervisor.nodes.questions import Questions
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import WATCH_PERIOD, SupervisedRun

ASK_PAUSE = 60.0  # seconds between two questions to ranks that go on hanging: each interrupts every rank for a moment
SUSPENDED = 30.0  # seconds between two looks of a job that was suspended meanwhile: its ranks did not train
MOST_LINES = 4  # groups of ranks whose place in the code is shown


class HealthWatch:
    """Watches the ranks of a run while they train."""

    def __init__(self, run: SupervisedRun, ingest: Ingest, questions: Questions) -> None:
        self._run, self._ingest, self._questions = run, ingest, questions
        self._process: object = None
        """Attempt and generation that `_health` is about."""
        self._health = Health(run.plan.world_size, run.plan.health)
        self._clock = 0.0
        self._looked_at: float | None = None
        self._points = 0
        self._asked_at: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._was_quiet = False  # whether no rank had made a step for `health.least`

    def look(self, now: float) -> None:
        self._clock += WATCH_PERIOD
        if self._looked_at is not None and now - self._looked_at > SUSPENDED:
            self._ingest.stretches.hang()
        self._looked_at = now
        run, state = self._run, self._run.state
        process = (state.attempt, state.generation)
        if process != self._process:
            self._process = process
            self._health = Health(run.plan.world_size, run.plan.health, self._clock)
        points, self._points = self._ingest.points_seen - self._points, self._ingest.points_seen
        if not isinstance(state.phase, Running):
            self._show({}, now)
            return
        away = {rank for node in state.nodes if node.link != "up" for rank in node.ranks}
        alive = [rank for rank, phase in enumerate(state.ranks) if isinstance(phase, Alive) and rank not in away]
        kept = len(self._ingest.points)
        notices = self._health.look(
            self._clock,
            self._ingest.progress,
            set(alive),
            itertools.islice(self._ingest.points, max(0, kept - points), None),
            sum(self._ingest.progress[rank].throughput or 0.0 for rank in alive),
        )
        self._show(self._health.marks, now)
        for kind, ranks, text in notices:
            policy = self._run.plan.launch.on_nan if kind == "nan" else "hold" if kind == "stays" else "ignore"
            self._notice(kind, ranks, text, policy)
        is_silent = not self._health.marks and self._health.is_quiet(self._clock, EARLY)
        if is_silent and all(self._ingest.progress[rank].meeting == "joined" for rank in alive):
            self._ask_if_due(again=not self._was_quiet and self._health.is_quiet(self._clock))
        self._was_quiet = self._health.is_quiet(self._clock)

    def _notice(self, kind: str, ranks: tuple[int, ...], text: str, policy: ev.Policy = "ignore") -> None:
        now, attempt = time.time(), self._run.state.attempt
        self._run.handle(ev.HealthNoticed(at=now, attempt=attempt, kind=kind, ranks=ranks, text=text, policy=policy))

    # --- what front ends see -----------------------------------------------------------------------------------------

    def _show(self, marks: dict[int, RankMark], now: float) -> None:
        """Changes the marks that front ends see. An entry that stays is the same object, so that no new view is made of it."""
        run = self._run
        shown: dict[int, RankHealth] = {}
        for rank, mark in marks.items():
            old = run.health.get(rank)
            # Empty where its age is shown.
            words = f"{mark.seconds:.3g} s a step, others {mark.usual:.3g} s" if mark.mark == "slow" else ""
            is_same = old is not None and old.mark == mark.mark and (mark.mark == "stalled" or old.words == words)
            shown[rank] = old if old is not None and is_same else RankHealth(mark.mark, now - mark.seconds, words)
        stalled = tuple(rank for rank, one in shown.items() if one.mark == "stalled")
        if not stalled:
            self._asked_at = self._asked_at if self._health.is_quiet(self._clock, EARLY) else None
            run.show_health(shown, None)
            return
        since = min(shown[rank].since for rank in stalled)
        if run.stall is None:
            self._asked_at = None
        known = run.stall or StallView(ranks=stalled, since=since, waits=tuple(self._health.told.values()))
        run.show_health(shown, msgspec.structs.replace(known, ranks=stalled, since=since))
        self._ask_if_due()

    def _ask_if_due(self, *, again: bool = False) -> None:
        is_due = again or self._asked_at is None or self._clock - self._asked_at >= ASK_PAUSE
        if is_due and (self._asking is None or self._asking.done()):
            is_first, self._asked_at = self._asked_at is None, self._clock
            self._asking = self._run.tasks.create_task(self._ask(is_first=is_first), name="who waits for whom")

    async def _ask(self, *, is_first: bool) -> None:
        run, process = self._run, self._process
        try:
            stacks = await self._questions.stacks()
            found = waits(stacks)
            folded = fold({one.rank: one.text for one in stacks if one.text})
            groups = sorted(folded, key=lambda group: len(group.ranks))
        except Exception as error:  # noqa: BLE001 - the content comes from ranks
            run.take_failed_reading(run.head, "who waits for whom is unknown", error)
            return
        if process != self._process:
            self._health.has_waits = False
            return
        if run.stall is None:
            self._take_early(stacks, found, groups)
            return
        told = self._health.told
        late = tuple(sorted({*told, *(rank for wait in found for rank in wait.late)}))
        sentences = (*told.values(), *(wait.sentence for wait in found))
        # The smallest group first: it has the rank that others wait for.
        doing = tuple(doings(stacks, groups)[:MOST_LINES])
        blame = next((group for group in groups if set(late[:1]) & set(group.ranks)), groups[0] if groups else None)
        own = own_frame(blame.frames) if blame is not None else None
        where = None if own is None else (own.file, own.line)
        stall = msgspec.structs.replace(run.stall, waits=sentences, doing=doing, late=late, place=where)
        blamed = {rank: run.health[rank]._replace(words="others wait for it") for rank in run.health.keys() & set(late)}
        run.show_health({**run.health, **blamed}, stall)
        run.note_change()
        if is_first and found:
            self._notice("waits", late, "; ".join([found[0].sentence, *doings(stacks, [blame] if blame else [])[:1]]))

    def _take_early(self, stacks: Sequence[RankStack], found: Sequence[Wait], groups: Sequence[Fold]) -> None:
        """Takes answers from before a rank was marked. Ranks are marked at once if those that others wait for wait for a lock, or for others."""
        late = {rank for wait in found for rank in wait.late}
        busy = [group for group in groups if late & set(group.ranks)]
        known = [place(group.frames) for group in busy]
        is_stuck = are_stuck(found) or (bool(known) and all(one is not None and one.cause.waits for one in known))
        self._health.has_waits = is_stuck or (bool(found) and self._health.is_quiet(self._clock))
        if found and not self._health.has_waits:
            self._notice("early", found[0].late, "; ".join([found[0].sentence, *doings(stacks, busy)[:1]]))
