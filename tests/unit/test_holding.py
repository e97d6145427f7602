"""When a run that holds ends by itself, and when it lets go of what it has in memory."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.requests import IDLE_LIMIT, hold_ends_at, idle_since
from engine.core.run.state import Holding, Outcome, Stopping
from engine.supervisor.watches.patience import HoldWatch
from tests.run_story import Story


def holding(**options: Any) -> Story:
    """Rank 1 of two has failed."""
    return Story(**options).run().end(1, 5)


class Watched:
    """A run whose events and requests are only noted."""

    def __init__(self, story: Story, hold_for: float = 0.0) -> None:
        self.events: list[AnyEvent] = []
        self.let_go = 0
        plan = SimpleNamespace(launch=SimpleNamespace(hold_for=hold_for))
        run: Any = SimpleNamespace(state=story.state, plan=plan, handle=self.events.append)
        orders: Any = SimpleNamespace(let_go=self.count)
        self.watch = HoldWatch(run, orders)

    def count(self) -> None:
        self.let_go += 1


def test_a_run_ends_once_it_has_held_for_its_time() -> None:
    story = holding()
    assert isinstance(story.state.phase, Holding)
    watched = Watched(story, hold_for=60.0)
    end = story.now + 60.0
    assert hold_ends_at(story.state, 60.0) == end
    watched.watch.look(end - 1)
    assert watched.events == []
    watched.watch.look(end)
    (event,) = watched.events
    assert event == ev.HoldOverdue(at=end, attempt=0, seconds=60.0)
    story.tell(event)
    assert isinstance(story.state.phase, Stopping)
    reason = "nobody restarted it within 60 s (launch.hold_for)"
    assert story.state.phase.then == Outcome(word="failed", reason=reason)


def test_without_a_limit_it_holds_for_ever() -> None:
    story = holding()
    watched = Watched(story)
    watched.watch.look(story.now + 1e9)
    assert hold_ends_at(story.state, 0.0) is None
    assert watched.events == []


def test_the_death_of_another_rank_does_not_extend_it() -> None:
    story = holding()
    end = hold_ends_at(story.state, 60.0)
    story.end(0, 1)
    assert hold_ends_at(story.state, 60.0) == end


def test_a_run_with_a_living_rank_is_not_let_go() -> None:
    story = holding()
    watched = Watched(story)
    assert idle_since(story.state) is None
    watched.watch.look(story.now + 1e9)
    assert watched.let_go == 0


def test_a_run_without_a_living_rank_is_let_go_once() -> None:
    story = holding().end(0, 1)
    watched = Watched(story)
    assert idle_since(story.state) == story.now
    watched.watch.look(story.now + IDLE_LIMIT - 1)
    assert watched.let_go == 0
    watched.watch.look(story.now + IDLE_LIMIT)
    watched.watch.look(story.now + IDLE_LIMIT + 1)
    assert watched.let_go == 1


@pytest.mark.parametrize("make", [lambda: Story().run(), lambda: Story().run().end(0).end(1), lambda: Story()])
def test_a_run_that_does_not_hold_is_never_let_go(make: Any) -> None:
    assert idle_since(make().state) is None
    assert hold_ends_at(make().state, 60.0) is None


def test_the_loss_of_a_store_that_no_rank_needs_is_no_trouble() -> None:
    story = holding().end(0, 1)
    story.tell(ev.StoreLost(at=story.at(), attempt=0, reason="its process is gone"))
    assert not story.state.store_trouble
