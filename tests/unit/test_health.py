"""Ranks that hang or lag, and curves that go wrong."""

import math
from collections.abc import Callable

import pytest

from engine.core.metrics.health import SPIKE_PAUSE, Health, Notice
from engine.core.metrics.progress import RAISED, RankProgress, take_record
from engine.core.metrics.series import Point
from engine.core.plan.profile import HealthLimits
from tests.support import from_table


class Run:
    """Ranks that make a step every so many seconds, looked at once a second."""

    def __init__(self, ranks: int = 4, limits: HealthLimits = HealthLimits(), steps: int | None = None) -> None:  # noqa: B008
        self.health = Health(ranks, limits)
        self.progress = [RankProgress(steps=steps) for _ in range(ranks)]
        self.now = 0.0
        self.notices: list[Notice] = []

    def go(self, seconds: int, every: Callable[[int], float] = lambda rank: 1.0, *, rate: float | None = 100.0) -> None:
        begin, first = self.now, [one.step or 0 for one in self.progress]
        for _ in range(seconds):
            self.now += 1
            for rank, one in enumerate(self.progress):
                if (interval := every(rank)) and (done := int((self.now - begin) / interval)):
                    one.step = first[rank] + done
            self.look(rate=rate)

    def look(self, *points: Point, rate: float | None = 100.0) -> None:
        self.notices += self.health.look(self.now, self.progress, set(range(len(self.progress))), points, rate)

    def losses(self, *values: float, rank: int = 0) -> None:
        for value in values:
            self.now += 1
            self.look(Point(rank, "loss", self.now, int(self.now), value if math.isfinite(value) else None))

    @property
    def kinds(self) -> list[str]:
        return [notice.kind for notice in self.notices]

    def marked(self, mark: str) -> list[int]:
        return [rank for rank, one in self.health.marks.items() if one.mark == mark]


def nobody(rank: int) -> float:
    return 0.0


def test_ranks_without_a_step_for_much_longer_than_usual_are_marked_once_and_told_when_they_go_on():
    run = Run()
    run.go(20)
    run.go(25, nobody)
    assert run.health.marks == {}
    run.go(20, nobody)
    assert run.marked("stalled") == [0, 1, 2, 3]
    assert run.kinds == ["stalled"]
    assert run.notices[0].ranks == (0, 1, 2, 3)
    assert "no step for 31 s; usual: 1 s" in run.notices[0].text
    run.go(2)
    assert run.health.marks == {}
    assert run.kinds == ["stalled", "moving"]
    assert "continues after about 45 s" in run.notices[1].text


@from_table
def test_ranks_that_hang_or_lag_are_marked(every: list[list[int]], marks: dict[str, list[int]]) -> None:
    """`every`: how many seconds each rank needs for a step, in one stretch of time after the other, which is the first number of each."""
    run = Run(len(every[0]) - 1)
    for seconds, *each in every:
        run.go(seconds, each.__getitem__)
    assert {mark: run.marked(mark) for mark in ("stalled", "slow") if run.marked(mark)} == marks
    assert marks or run.kinds == []


def test_a_hang_soon_after_fast_first_steps_is_marked_and_one_look_makes_no_rank_slow():
    run = Run(2)
    for steps in ((1, 1), (11, 5)):
        for one, step in zip(run.progress, steps, strict=True):
            one.step = step
        run.go(1, nobody)
    run.go(29, nobody)
    assert run.kinds == []
    run.go(2, nobody)
    assert run.marked("stalled") == [0, 1]
    assert run.kinds == ["stalled"]


def test_ranks_that_wait_for_each_other_are_marked_before_anything_is_usual_until_they_go_on():
    run = Run(2)
    run.go(40, nobody)
    assert (run.health.is_quiet(run.now), run.health.marks) == (True, {})
    run.health.has_waits = True  # as the answers of the ranks say
    run.go(1, nobody)
    assert run.marked("stalled") == [0, 1]
    run.go(2)
    assert (run.kinds, run.health.marks) == (["stalled", "moving"], {})


def test_a_rank_that_raised_and_stays_is_told_and_after_a_minute_ended():
    run = Run(2)
    run.go(20)
    take_record(1, run.progress[1], {"t": 1.0, RAISED: "ValueError: bad (train.py:3)", "threads": "prefetch"})
    run.go(5)
    assert (run.kinds, run.marked("stalled")) == (["raised"], [1])
    assert run.notices[0].text.endswith("and its process has not ended: it waits for the thread prefetch")
    run.go(100)
    assert run.kinds == ["raised", "stays"]
    take_record(1, run.progress[1], {"t": 2.0, "joining": True})  # another process of the rank
    run.go(1)
    assert run.health.told == {}


def test_a_rank_that_evaluates_saves_joins_or_is_done_is_left_alone():
    for case in ("phase", "done", "joining"):
        run = Run(steps=20 if case == "done" else None)
        run.go(20)
        for one in run.progress:
            one.phase = "eval" if case == "phase" else ""
            one.meeting = "joining" if case == "joining" else ""
        run.go(600, nobody, rate=0.0)
        assert run.kinds == [], case
    run = Run()
    run.go(20)
    run.progress[0].phase = "eval"
    run.go(600, nobody)
    run.progress[0].phase = ""
    run.go(20, nobody)
    assert 0 not in run.health.marks, "its pause begins anew"


def test_a_script_without_steps_is_watched_by_its_output():
    run = Run(2)
    for second in range(60):
        for one in run.progress:
            one.seen = float(second)
        run.go(1, nobody)
    run.go(40, nobody)
    assert run.marked("stalled") == [0, 1]


def test_a_slow_rank_is_marked_after_a_while_and_no_longer_once_it_keeps_up():
    run = Run()
    run.go(8, lambda rank: 2.0 if rank == 3 else 1.0)
    assert run.kinds == []
    run.go(40, lambda rank: 2.0 if rank == 3 else 1.0)
    assert run.marked("slow") == [3]
    assert run.kinds == ["slow"]
    assert run.notices[0].text == "rank 3: slow, 2 s a step; the others: 1 s"
    run.go(60)
    assert run.kinds == ["slow", "even"]


@pytest.mark.parametrize("limits", [HealthLimits(stalled=0), HealthLimits(slow=0)])
def test_zero_switches_a_report_off(limits: HealthLimits):
    run = Run(limits=limits)
    run.go(60, lambda rank: 3.0 if rank == 0 else 1.0)
    run.go(100, nobody)
    assert ("slow" in run.kinds, "stalled" in run.kinds) == (bool(limits.slow), bool(limits.stalled))


def test_a_loss_that_is_not_finite_is_told_at_each_time_and_marked_until_it_is_finite():
    run = Run()
    run.losses(2.0, 1.9)
    take_record(0, run.progress[0], {"t": 3.0, "step": 3, "loss": math.nan})
    run.losses(math.nan)
    assert run.notices[-1].text == "the loss of rank 0 is nan at step 3"
    assert run.marked("nan") == [0]
    take_record(0, run.progress[0], {"t": 4.0, "step": 4, "loss": 1.8})
    run.losses(1.8)
    assert run.health.marks == {}
    assert run.kinds == ["nan"]


def test_a_spike_of_the_loss_is_told_and_noise_and_falling_are_not():
    run = Run()
    run.losses(*(3.0 / step + 0.1 * (step % 3) for step in range(1, 100)))
    assert run.kinds == []
    run.losses(5.0, 5.0)
    assert run.kinds == ["spike"]
    assert run.notices[0].text.startswith("the loss of rank 0 spikes at step 100: 5 after about 0.1")
    run.now += SPIKE_PAUSE
    run.losses(*[0.15] * 40, 9.0)
    assert run.kinds == ["spike", "spike"]


def test_a_throughput_that_drops_and_returns_is_told_once():
    run = Run()
    run.go(60)
    run.go(30, rate=30.0)
    assert run.kinds == ["drop"]
    assert run.notices[0].text == "the throughput dropped to 44 per second; usual: 100"
    run.go(30, rate=95.0)
    assert run.kinds == ["drop", "restored"]


def test_a_phase_lasts_until_the_next_step():
    progress = RankProgress()
    take_record(0, progress, {"t": 1.0, "step": 5})
    take_record(0, progress, {"t": 1.0, "phase": "eval"})
    assert progress.phase == "eval"
    take_record(0, progress, {"t": 1.0, "step": 5, "val_loss": 2.0})
    assert progress.phase == "eval"
    take_record(0, progress, {"t": 1.0, "step": 6})
    assert progress.phase == ""
    take_record(0, progress, {"t": 1.0, "step": 7, "phase": "save" * 50})
    assert progress.phase == ("save" * 50)[:24]
    for training in ("train", ""):
        take_record(0, progress, {"t": 1.0, "phase": "eval"})
        take_record(0, progress, {"t": 1.0, "phase": training})
        assert progress.phase == ""
