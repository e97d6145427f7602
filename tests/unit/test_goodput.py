"""What a run does with its time: `engine.core.views.goodput`, from the times of phases and steps."""

from typing import Any

import hypothesis.strategies as some
import msgspec
import pytest
from hypothesis import given

from engine.core.metrics.stretches import Stretches
from engine.core.run import events as ev
from engine.core.run.machine import replay
from engine.core.views.goodput import Goodput, goodput

LAUNCHED = ev.RunLaunched(at=0.0, run="r", name="r", nodes=(("n1", (0,)),), on_failure="restart", max_restarts=3)


def attempt(number: int, at: float) -> list[Any]:
    opened = ev.StoreOpened(at=at, attempt=number, node="n1", port=1)
    return [opened, ev.RankSpawned(at=at + 1, attempt=number, rank=0, pid=9)]


def ends(number: int, at: float, status: int = 0) -> list[Any]:
    """The rank ends, and a second later the node is cleared: the next attempt begins, or the run ends after another second."""
    ended = ev.RankEnded(at=at, attempt=number, rank=0, status=status)
    closed = [] if status else [ev.NodeClosed(at=at + 2, node="n1")]
    return [ended, ev.NodeCleared(at=at + 1, attempt=number, node="n1"), *closed]


def found(events: list[Any], stretches: Stretches) -> Goodput:
    state = replay([LAUNCHED, ev.NodeConnected(at=1.0, node="n1", agent_pid=1), *events])
    assert state is not None
    return goodput(state, stretches.known)


def parts(one: Goodput) -> dict[str, float]:
    return {name: round(getattr(one, name), 6) for name in one.shares()}


def steps(stretches: Stretches, number: int, first: int, last: int, at: float, every: float = 1.0, by: int = 1) -> None:
    stretches.start_attempt(number)
    for place, step in enumerate(range(first, last + 1, by)):
        stretches.take(at + place * every, 0, step)


def test_a_run_without_trouble_starts_trains_and_ends():
    stretches = Stretches()
    steps(stretches, 0, 1, 11, at=10.0)  # until 20
    one = found([*attempt(0, 2.0), *ends(0, 25.0)], stretches)
    assert parts(one) == {"training": 10.0, "starting": 10.0, "ending": 7.0}
    assert (one.doing, one.until(99.0)) == (None, one)
    assert one.words == "trained 37 %, started 37 %, ended 26 %"


def test_steps_that_the_attempt_before_had_made_are_repeated():
    stretches = Stretches()
    steps(stretches, 0, 1, 11, at=10.0)  # until 20
    steps(stretches, 1, 6, 16, at=30.0)  # 6 to 11 again, until 35
    one = found([*attempt(0, 2.0), *ends(0, 22.0, -9), *attempt(1, 24.0), *ends(1, 40.0)], stretches)
    assert parts(one) == {"training": 15.0, "repeating": 5.0, "starting": 17.0, "ending": 5.0}
    assert "repeated 12 % (6 steps)" in one.words


def test_a_live_run_goes_on_with_what_it_does():
    stretches = Stretches()
    assert found(attempt(0, 2.0), stretches).doing == "unknown"  # maybe its script reports no steps
    steps(stretches, 0, 1, 3, at=10.0)
    one = found(attempt(0, 2.0), stretches)
    assert (one.doing, one.as_of, one.until(15.0).training) == ("training", 12.0, 5.0)
    again = Stretches(stretches.known, attempt=1)
    again.take(30.0, 0, 2)
    assert found([*attempt(0, 2.0), *ends(0, 22.0, -9), *attempt(1, 24.0)], again).doing == "repeating"


def test_hangs_and_held_failures_are_waited_for():
    stretches = Stretches()
    steps(stretches, 0, 1, 3, at=10.0)
    stretches.hang()
    assert found(attempt(0, 2.0), stretches).doing == "waiting"
    stretches.take(50.0, 0, 4)
    stretches.take(51.0, 0, 5)
    one = found(attempt(0, 2.0), stretches)
    assert parts(one) == {"training": 3.0, "starting": 10.0, "waiting": 38.0}
    holds: list[Any] = [ev.RankEnded(at=55.0, attempt=0, rank=0, status=-9), ev.StopRequested(at=70.0, by="ann")]
    held = msgspec.structs.replace(LAUNCHED, on_failure="hold")
    state = replay([held, ev.NodeConnected(at=1.0, node="n1", agent_pid=1), *attempt(0, 2.0), *holds])
    assert state is not None
    one = goodput(state, stretches.known)
    assert (one.waiting, one.ending, one.doing) == (38.0 + 15.0, 4.0, "ending")


def test_the_time_of_a_script_without_steps_is_unknown():
    one = found([*attempt(0, 2.0), *ends(0, 25.0)], Stretches())
    assert parts(one) == {"starting": 3.0, "unknown": 22.0, "ending": 2.0}


def test_what_the_first_of_sparse_reports_has_trained_is_unknown():
    stretches = Stretches()
    steps(stretches, 0, 10, 60, at=23.0, every=10.0, by=10)  # 10 steps take 10 s: until 73
    one = found([*attempt(0, 2.0), *ends(0, 73.0)], stretches)
    assert parts(one) == {"training": 50.0, "starting": 13.0, "unknown": 10.0, "ending": 2.0}


def test_the_last_rank_that_joins_ends_the_start_of_a_generation():
    stretches = Stretches()
    steps(stretches, 0, 1, 7, at=4.0)
    stretches.take_record(18.0, 1, {"step": 5, "elastic": "joining", "generation": 1})
    for rank, at in enumerate((20.0, 22.0)):
        stretches.take_record(at, rank, {"step": 5, "elastic": "joined", "generation": 1})
    stretches.take_record(22.0, 1, {"step": 1 << 70})
    stretches.take(22.5, 2, 7)  # late news of a rank that is in the generation before
    for at, step in ((23.0, 6), (24.0, 7), (25.0, 8)):
        stretches.take(at, 0, step)
    one = stretches.known[-1]
    assert (one.first_at, one.repeated, one.repeating, one.last) == (22.0, 2, 2.0, 8)


@given(some.lists(some.tuples(some.floats(0, 30), some.integers(0, 9), some.booleans()), max_size=20), some.data())
def test_the_parts_add_up_to_the_time_of_the_run(reports: list[tuple[float, int, bool]], data: some.DataObject):
    """Also where clocks jump, and where reports come before their attempt began or after its end."""
    stretches, number = Stretches(), 0
    for at, step, is_next in reports:
        number += is_next
        stretches.start_attempt(number)
        stretches.take(at, 0, step, is_joined=data.draw(some.booleans()))
        if data.draw(some.booleans()):
            stretches.hang()
    events = [*attempt(0, 2.0), *ends(0, 9.0, -9), *attempt(1, 10.0)]
    live = found(events, stretches).until(28.0)
    assert sum(parts(live).values()) == pytest.approx(max(28.0, live.as_of))
    over = parts(found([*events, *ends(1, 26.0)], stretches))
    assert sum(over.values()) == pytest.approx(28.0)
    assert min(over.values()) >= 0
