"""What follows when ranks hang or a loss is not finite: marks, events, and `launch.on_nan`."""

import asyncio
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.core.errors import ProfileError
from engine.core.failures.collectives import Wait
from engine.core.failures.diagnosis import explain
from engine.core.failures.stacks import RankStack
from engine.core.metrics.progress import take_record
from engine.core.plan.document.reading import profile_from_data
from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.health_events import MOST_NOTICES, ON_NAN, Kills
from engine.core.run.state import Holding, Outcome, Running, Stopping
from engine.core.views.story import tell_all
from engine.core.views.view import JobView
from engine.core.views.views import seen_words
from engine.core.wire import agent_requests as requests
from engine.supervisor.runner import Runner
from engine.supervisor.snapshots import Snapshots
from engine.supervisor.watches.health import HealthWatch
from tests.played_run import PlayedLink, play_run
from tests.run_story import Story
from tests.support import from_table

STACK = """Current thread 0x1 (most recent call first):
  File "{file}", line {line} in {function}
  File "/home/a/train.py", line 9 in <module>
"""


class Asked:
    """Agents that answer a question about stacks: rank 2 is in its own code, the others are in a collective."""

    def __init__(self, late: str = "load") -> None:
        self.count, self.late = 0, late

    async def stacks(self) -> tuple[RankStack, ...]:
        self.count += 1
        waiting = STACK.format(file="/x/torch/distributed/distributed_c10d.py", line=1, function="all_reduce")
        file = "/home/a/train.py" if self.late == "load" else f"/env/site-packages/{self.late}"
        own = STACK.format(file=file, line=17, function=self.late)
        return tuple(RankStack(rank=rank, text=own if rank == 2 else waiting) for rank in range(4))


def noticed(policy: ev.Policy, *ranks: int, kind: str = "nan", attempt: int = 0) -> ev.HealthNoticed:
    return ev.HealthNoticed(at=1e3, attempt=attempt, kind=kind, ranks=ranks, text="the loss is nan", policy=policy)


def test_ignore_is_one_line_of_the_story() -> None:
    story = Story().run()
    assert story.tell(noticed("ignore", 1)) == ()
    assert isinstance(story.state.phase, Running)
    line = tell_all(story.journal)[-1]
    assert (line.text, line.level) == ("the loss is nan", "warning")
    story.tell(noticed("ignore", 1, kind="moving"))
    assert tell_all(story.journal)[-1].level == "info"


def test_stop_ends_the_run_as_failed_with_the_reason() -> None:
    story = Story().run()
    story.tell(noticed("stop", 1))
    assert isinstance(story.state.phase, Stopping)
    assert story.state.phase.then == Outcome(word="failed", reason="the loss is nan (launch.on_nan)")


@pytest.mark.parametrize("on_failure", ["hold", "stop", "restart"])
def test_hold_ends_only_that_rank_and_the_run_holds_whatever_on_failure_says(on_failure: str) -> None:
    story = Story(on_failure=on_failure).run()
    actions = story.tell(noticed("hold", 1))
    assert actions == (act.SignalRank(node="a", attempt=0, rank=1, signal=9),)
    kills = Kills()
    kills.take(noticed("hold", 1))
    assert kills.sender(1, -9) == ON_NAN
    assert kills.sender(1, 1) == kills.sender(0, -9) == ""
    story.end(1, -9, by=kills.sender(1, -9))
    assert isinstance(story.state.phase, Holding)
    assert "its loss was not finite" in explain(1, -signal.SIGKILL, b"", by=ON_NAN).headline


def test_it_says_nothing_without_end_and_nothing_of_another_attempt() -> None:
    story = Story().run()
    for _ in range(MOST_NOTICES + 10):
        story.tell(noticed("ignore", 1))
    assert sum(isinstance(event, ev.HealthNoticed) for event in story.journal) == MOST_NOTICES
    assert story.tell(noticed("hold", 1, attempt=1)) != ()
    assert isinstance(story.state.phase, Running)
    story.tell(noticed("stop", 1))
    assert isinstance(story.state.phase, Stopping)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with play_run(tmp_path, launch={"on_nan": "hold"}, health={"least": 5.0}) as runner:
        yield runner


def step(runner: Runner, number: int, *, loss: float = 1.0) -> None:
    for rank, progress in enumerate(runner.ingest.progress):
        points = take_record(rank, progress, {"t": 1e9 + number, "step": number, "loss": loss})
        runner.ingest.points.extend(points)
        runner.ingest.points_seen += len(points)


async def test_a_run_that_its_job_ends_before_the_last_step_says_so(runner: Runner) -> None:
    snapshots = Snapshots(runner.run, runner.ingest)

    def seen(number: int, ends_in: float) -> int | None:
        step(runner, number)
        runner.ingest.progress[0].steps = 1000
        runner.run.job = JobView(job="109", ends_at=time.time() + ends_in)
        runner.run.note_change()
        snapshots.refresh()
        assert snapshots.run_view.job is not None
        return snapshots.run_view.job.last_step

    async with runner.run.tasks:
        assert seen(1, 0.0) is None, "the pace is not known"
        assert (seen(2, 0.0), seen(3, 1e9), seen(4, 0.0)) == (1000, None, 1000)


async def test_a_hang_is_shown_with_where_the_ranks_are_and_goes_when_they_go_on(runner: Runner) -> None:
    asked = Asked()
    watch = HealthWatch(runner.run, runner.ingest, asked)  # type: ignore[arg-type]
    snapshots = Snapshots(runner.run, runner.ingest)

    def look(times: int) -> None:
        for _ in range(times):
            watch.look(1e9)

    async with runner.run.tasks:
        for number in range(1, 20):
            step(runner, number)
            look(1)
        assert runner.run.stall is None
        look(20)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        look(30)
    assert asked.count == 1, "once in a minute"
    snapshots.refresh()
    view = snapshots.run_view
    assert view.stall is not None
    assert view.stall.ranks == (0, 1, 2, 3)
    assert view.stall.doing == ("rank 2: in load (train.py:17)", "ranks 0-1, 3: waiting in all_reduce")
    assert view.stall.place is not None
    assert (Path(view.stall.place[0]).name, view.stall.place[1]) == ("train.py", 17)
    assert {rank.health for rank in snapshots.snapshot().ranks} == {"stalled"}
    assert {rank.throughput for rank in snapshots.snapshot().ranks} == {None}
    assert [line.text for line in runner.run.story[-1:]] == ["ranks 0, 1, 2, 3: no step for 11 s; usual: 1 s"]
    step(runner, 20)
    look(1)
    snapshots.refresh()
    assert snapshots.run_view.stall is None
    assert {rank.health for rank in snapshots.snapshot().ranks} == {""}
    assert runner.run.story[-1].text.startswith("ranks 0, 1, 2, 3: continues after about")


@from_table
async def test_before_any_step_ranks_are_asked_early_and_marked_early_if_they_are_stuck(
    different: bool, function: str, is_marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Wait(sentence="rank 2 has not called barrier #0; rank 0 waits in it for 6 s", late=(2,), different=different)
    monkeypatch.setattr("engine.supervisor.watches.health.waits", lambda _: [wait])
    with play_run(tmp_path) as runner:
        watch = HealthWatch(runner.run, runner.ingest, Asked(function))  # type: ignore[arg-type]
        for progress in runner.ingest.progress:
            take_record(0, progress, {"t": 1e9, "joined": True})
        async with runner.run.tasks:
            for _ in range(8):
                watch.look(1e9)
                await asyncio.sleep(0)
        assert (runner.run.stall is not None) == is_marked
        told = next(line for line in runner.run.story if line.text.startswith(wait.sentence))
        assert told.level == ("warning" if is_marked else "info")
        assert is_marked or told.text.endswith("; rank 2: in load (train.py:17)")
        assert seen_words(runner.run.state, 2) == f"seen before the end: {told.text}"
        assert seen_words(runner.run.state, 0) == ""


def test_a_rank_whose_loss_is_not_finite_is_ended_where_the_profile_says_hold(runner: Runner) -> None:
    watch = HealthWatch(runner.run, runner.ingest, Asked())  # type: ignore[arg-type]
    step(runner, 1)
    watch.look(1e9)
    points = take_record(1, runner.ingest.progress[1], {"t": 1e9, "step": 2, "loss": math.nan})
    runner.ingest.points.extend(points)
    runner.ingest.points_seen += len(points)
    watch.look(1e9)
    link = runner.agents.links["gpu01"]
    assert isinstance(link, PlayedLink)
    signals = [request for request in link.sent if isinstance(request, requests.SignalRank)]
    assert [(request.rank, request.signal) for request in signals] == [(1, 9)]
    assert runner.run.story[-1].text == "the loss of rank 1 is nan at step 2"
    assert runner.run.health[1].mark == "nan"


@from_table
def test_limits_without_sense_are_refused(section: dict[str, float], key: str) -> None:
    data = {"schema": 1, "name": "x", "recipe": {"name": "linear"}, "health": section}
    with pytest.raises(ProfileError, match=f"health.{key}"):
        profile_from_data(data, "x.toml")
