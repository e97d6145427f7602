"""The newest snapshot of a run, and what each subscriber has not received yet.

A subscriber is a few numbers: how far it has received the run. Its next update is built when its connection has room, so that a slow or stuck one
costs the memory of one message, delays no other, and misses no event.
"""

import itertools
import time

import msgspec

from engine.core.run.events import Scope
from engine.core.run.state import RunState
from engine.core.views.activity import next_restart
from engine.core.views.pace import Pace
from engine.core.views.view import JobView, RankView, RunView, Snapshot, Update
from engine.core.views.views import rank_views, run_view
from engine.linux.files import replace_file
from engine.runs.replay import Numbers
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun


class Seen:
    """How far a subscriber has received the run."""

    def __init__(self) -> None:
        self.revision = -1
        self.points = 0
        self.story = 0


class Snapshots:
    """A run as front ends see it."""

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._supervised, self._ingest = run, ingest
        self._revision = 0
        self._state: RunState | None = None
        """The state of the newest snapshot."""
        self._run: RunView | None = None
        self._run_revision = 0
        self._pace = Pace()
        self._ranks: list[RankView] = []
        self._rank_revisions = [0] * run.plan.world_size
        self.refresh()

    def restart_words(self, scope: Scope) -> str:
        return next_restart(self._supervised.state, self._ingest.progress, scope).words

    def refresh(self) -> bool:
        """Rebuilds the changed parts. Returns whether there are any."""
        run, progress, stretches = self._supervised, self._ingest.progress, self._ingest.stretches.known
        if self._state is run.state and not run.has_changed:
            return False
        self._state = run.state
        changed = run.take_changes()
        revision, moved = self._revision + 1, False
        changed = changed if self._ranks else list(range(run.plan.world_size))
        views = rank_views(run.state, run.plan, changed, progress, run.gpu_use, run.health, run.process_use, stretches)
        self._ranks = self._ranks or list(views)
        for rank, view in zip(changed, views, strict=True):
            if view != self._ranks[rank] or self._run is None:
                self._ranks[rank], self._rank_revisions[rank], moved = view, revision, True
        try:
            whole = run_view(run.state, run.plan, progress, run.tails, run.waits, run.stall, stretches)
        except Exception as error:  # noqa: BLE001 - the content comes from ranks
            run.drop_explanations()
            run.take_failed_reading(run.head, "failures are not explained", error)
            whole = run_view(run.state, run.plan, progress, run.tails, run.waits, run.stall, stretches)
        if run.job is not None:
            whole = msgspec.structs.replace(whole, job=self._with_end(run.job, whole))
        if not run.ended.is_set() and run.own_words:
            whole = msgspec.structs.replace(whole, doing="; ".join(filter(None, (run.own_words, whole.doing))))
        if whole != self._run:
            self._run, self._run_revision, moved = whole, revision, True
        if moved:
            self._revision = revision
        return moved

    def _with_end(self, job: JobView, run: RunView) -> JobView:
        """The job of a run, with the run's last step if the job ends before."""
        if self._run is None or (self._run.attempt, self._run.generation) != (run.attempt, run.generation):
            self._pace.clear()
        now = time.time()
        if run.step is not None:
            self._pace.note(now, run.step)
        left = self._pace.seconds_left(run)
        is_late = left is not None and job.ends_at is not None and now + left > job.ends_at
        return msgspec.structs.replace(job, last_step=run.steps) if is_late else job

    @property
    def newest(self) -> tuple[int, int, int]:
        """Newest revision, and numbers of points and lines of the story."""
        return self._revision, self._ingest.points_seen, len(self._supervised.story)

    @property
    def run_view(self) -> RunView:
        assert self._run is not None
        return self._run

    def snapshot(self) -> Snapshot:
        series = tuple(self._ingest.series.dump())
        return Snapshot(
            run=self.run_view, ranks=tuple(self._ranks), series=series, events=tuple(self._supervised.story)
        )

    def save_numbers(self) -> None:
        """Writes `numbers.json`."""
        run = self._supervised
        numbers = Numbers(
            at=time.time(),
            attempt=self._ingest.attempt,
            progress=self._ingest.progress,
            gpus=run.gpu_use,
            processes=run.process_use,
            health=run.health,
            stall=run.stall,
            job=self.run_view.job,
            words=run.own_words,
            newest=self._ingest.series.newest(),
            stretches=self._ingest.stretches.known,
        )
        replace_file(run.paths.numbers, msgspec.json.encode(numbers))

    def has_news(self, seen: Seen) -> bool:
        """Whether there is anything that a subscriber has not received."""
        return (seen.revision, seen.points, seen.story) != self.newest

    def next(self, seen: Seen) -> Snapshot | Update | None:
        """Returns the message that a subscriber lacks, or None, and marks it as received."""
        if not self.has_news(seen):
            return None
        ingest, story = self._ingest, self._supervised.story
        missed = ingest.points_seen - seen.points
        if seen.revision < 0 or missed > len(ingest.points):
            message: Snapshot | Update = self.snapshot()
        else:
            ranks = tuple(
                view for view, at in zip(self._ranks, self._rank_revisions, strict=True) if at > seen.revision
            )
            points = tuple(itertools.islice(ingest.points, len(ingest.points) - missed, None)) if missed else ()
            run = self._run if self._run_revision > seen.revision else None
            message = Update(run=run, ranks=ranks, points=points, events=tuple(story[seen.story :]))
        seen.revision, seen.points, seen.story = self.newest
        return message
