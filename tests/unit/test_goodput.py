"""What a run does with its time: `engine.core.views.goodput`, from the times of phases and steps."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as some
import msgspec
import pytest
from hypothesis import given

from engine.core.metrics.stretches import Stretches
from engine.core.run import events as ev
from engine.core.run.machine import replay
from engine.core.views.goodput import Goodput, goodput
from tests.support import from_table

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
    state = replay([events[0], ev.NodeConnected(at=1.0, node="n1", agent_pid=1), *events[1:]])
    assert state is not None
    return goodput(state, stretches.known)


def parts(one: Goodput) -> dict[str, float]:
    return {name: round(getattr(one, name), 6) for name in one.shares()}


def steps(stretches: Stretches, number: int, first: int, last: int, at: float, every: float = 1.0, by: int = 1) -> None:
    stretches.start_attempt(number)
    for place, step in enumerate(range(first, last + 1, by)):
        stretches.take(at + place * every, 0, step)


@from_table
def test_each_moment_of_a_run_counts_as_one_part(told: list[str], expected: dict[str, Any]):
    """`attempt NUMBER AT`, `steps ATTEMPT FIRST LAST AT [EVERY BY]`, `ends ATTEMPT AT [STATUS]`, `hang`, `hold`: failures are held."""
    events: list[Any] = [LAUNCHED]
    stretches = Stretches()
    verbs: dict[str, Callable[..., Any]] = {
        "hold": lambda: events.append(msgspec.structs.replace(events.pop(), on_failure="hold")),
        "attempt": lambda *words: events.extend(attempt(*words)),
        "steps": lambda *words: steps(stretches, *words),
        "ends": lambda *words: events.extend(ends(*words)),
        "stop": lambda at: events.append(ev.StopRequested(at=at, by="ann")),
        "hang": stretches.hang,
    }
    for verb, *words in map(str.split, told):
        verbs[verb](*map(int, words))
    one = found(events, stretches)
    shown = expected.keys() - parts(one).keys()
    assert {**parts(one), **{name: getattr(one, name) for name in shown}} == expected


def test_the_last_rank_that_joins_ends_the_start_of_a_generation():
    stretches = Stretches()
    steps(stretches, 0, 1, 7, at=4.0)
    stretches.take_record(18.0, 1, {"step": 5, "elastic": "joining", "generation": 1}, 5)
    for rank, at in enumerate((20.0, 22.0)):
        stretches.take_record(at, rank, {"step": 5, "elastic": "joined", "generation": 1}, 5)
    stretches.take(22.5, 2, 7)  # late news of a rank that is in the generation before
    steps(stretches, 0, 6, 8, at=23.0)
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
    events = [LAUNCHED, *attempt(0, 2.0), *ends(0, 9.0, -9), *attempt(1, 10.0)]
    live = found(events, stretches).until(28.0)
    assert sum(parts(live).values()) == pytest.approx(max(28.0, live.as_of))
    over = parts(found([*events, *ends(1, 26.0)], stretches))
    assert sum(over.values()) == pytest.approx(28.0)
    assert min(over.values()) >= 0


def test_the_rank_that_waits_least_at_collectives_is_late():
    """Of each rank's waiting, only what comes after the first step counts; by clocks that differ."""
    stretches = Stretches()
    for at, waited in ((0.0, 9.0), (10.0, 50.0), (20.0, 51.0), (30.0, 51.8)):
        for rank, clock in enumerate((1000.0, 0.0)):
            stretches.take_record(at, rank, {"t": clock + at, "rankdeck.waited": waited / (1 + rank)}, None)
        stretches.take(at + 5.0, 0, int(at) + 1)
    (one,) = stretches.known
    late = one.late(2)
    assert [late[0].share, late[1].share, late[1].step_seconds] == pytest.approx([0.0, 0.045, 0.045])
    assert one.late(3) == {}  # the third rank has told nothing
    stretches.take_record(40.0, 1, {"t": 40.0, "rankdeck.waited": 0.5}, None)  # its group is gone
    assert one.late(2) == {}
