"""The state machine: every event in every phase."""

import itertools
import typing
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run import machine
from engine.core.run import state as st
from engine.core.run.events import AnyEvent
from engine.core.run.machine import replay, step
from engine.core.run.moves import Step
from engine.core.views.story import tell_all
from tests.run_story import TWO, Story, check_words, continued, given_up, without_b
from tests.support import rows

DATA = Path(__file__).parent.parent / "data"


SITUATIONS: dict[str, Callable[[], Story]] = {
    "opening": lambda: Story(TWO),
    "opening, one node there": lambda: Story(TWO).connect("a"),
    "opening again": lambda: Story(TWO).run().end(0, 1).restart().end(1).end(2).clear(),
    "starting, no store": lambda: Story(TWO).connect(),
    "starting": lambda: Story(TWO).connect().open_store().spawn(0),
    "running": lambda: Story(TWO).run(),
    "running, one done": lambda: Story(TWO).run().end(1),
    "running, a node away": lambda: without_b(Story(TWO).run()),
    "running, a spare node": lambda: Story(TWO, spare_nodes=1).run(),
    "running, a spare node to rejoin on": lambda: Story(TWO, spare_names=("s",)).run().join(),
    "rejoining on a spare node": lambda: given_up(Story(TWO, spare_names=("s", "t")).run().join()),
    "holding": lambda: Story(TWO).run().end(1, 1),
    "holding, a node given up": lambda: given_up(Story(TWO).run()),
    "holding, can rejoin": lambda: Story(TWO).run().join(0).end(1, 1),
    "rejoining": lambda: Story(TWO).run().join(0).end(1, 1).restart(),
    "rejoined": lambda: Story(TWO).run().join(0).end(1, 1).restart().spawn(1),
    "stopping": lambda: Story(TWO).run().stop(),
    "stopping to fail": lambda: Story(TWO, "stop").run().end(1, 1),
    "stopping to restart": lambda: Story(TWO).run().end(1, 1).restart(),
    "stopping to fall back": lambda: Story(TWO, backends=("nccl", "gloo")).run().end(1, 1, setup_error="no GPU"),
    "clearing": lambda: Story(TWO).run().end(0).end(1).end(2),
    "clearing to fail": lambda: Story(TWO, "stop").run().end(1, 1).end(0).end(2),
    "clearing to restart": lambda: Story(TWO).run().end(1, 1).restart().end(0).end(2),
    "closing": lambda: Story(TWO).run().end(0).end(1).end(2).clear(),
    "ended": lambda: Story(TWO).run().end(0).end(1).end(2).clear().close(),
    "stopping to wait for a job": lambda: Story(TWO).run().stop(again=True),
    "clearing to wait for a job": lambda: Story(TWO).run().stop(again=True).end(0).end(1).end(2),
    "waiting for a job": lambda: Story(TWO).run().stop(again=True).end(0).end(1).end(2).clear().close(),
    "continued": lambda: continued(Story(TWO).run().stop(again=True).end(0).end(1).end(2).clear().close()),
    "ended, stopped": lambda: Story(TWO).run().stop().end(0).end(1).end(2).clear().close(),
}


EVENTS: tuple[AnyEvent, ...] = (
    *(
        msgspec.convert({"event": kind, "at": 5e3, **fields, **dict(zip(choices, chosen, strict=True))}, AnyEvent)
        for kind, fields, choices in rows("unit/machine", "events")
        for chosen in itertools.product(*choices.values())
    ),
    *(
        ev.HealthNoticed(at=5e3, attempt=attempt, kind="nan", ranks=(1, 9), text="x", policy=policy)
        for attempt in (0, 1)
        for policy in typing.get_args(ev.Policy)
    ),
    *(ev.RestartRequested(at=5e3, by="bob", scope=scope) for scope in typing.get_args(ev.Scope)),
)


def test_every_event_and_every_phase_is_tried() -> None:
    assert {type(event) for event in EVENTS} == set(typing.get_args(ev.AnyEvent))
    assert {type(make().state.phase) for make in SITUATIONS.values()} == set(typing.get_args(st.Phase))
    ends = {
        (type(phase), type(phase.then))
        for phase in (make().state.phase for make in SITUATIONS.values())
        if isinstance(phase, st.Stopping | st.Clearing)
    }
    assert ends == set(itertools.product((st.Stopping, st.Clearing), (st.Outcome, st.Restart)))


@pytest.mark.parametrize("policy", ["hold", "stop", "restart"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_event_in_every_phase_changes_something_or_is_ignored_for_a_reason(situation: str, policy: str) -> None:
    state = msgspec.structs.replace(SITUATIONS[situation]().state, on_failure=policy)
    for event in EVENTS:
        after, actions = step(state, event)
        assert after is not state or actions, event
        for action in actions:
            if isinstance(action, act.Ignore):
                assert action.reason
            else:
                assert getattr(action, "node", "") in {node.name for node in after.nodes}, (event, action)
        check_words(after)


def test_every_event_survives_json() -> None:
    for event in EVENTS:
        assert msgspec.json.decode(msgspec.json.encode(event), type=ev.AnyEvent) == event


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_state_and_its_journal_survive_json(situation: str) -> None:
    story = SITUATIONS[situation]()
    assert msgspec.json.decode(msgspec.json.encode(story.state), type=st.RunState) == story.state
    lines = [msgspec.json.encode(event) for event in story.journal]
    assert replay(msgspec.json.decode(line, type=ev.AnyEvent) for line in lines) == story.state


@pytest.mark.parametrize("situation", SITUATIONS)
def test_nothing_of_another_attempt_rank_or_node_is_news(situation: str) -> None:
    state = SITUATIONS[situation]().state
    for event in EVENTS:
        foreign = (
            getattr(event, "attempt", None) not in (None, state.attempt)
            or not 0 <= getattr(event, "rank", 0) < len(state.ranks)
            or getattr(event, "node", "a") == "z"
        )
        if foreign:
            after, actions = step(state, event)
            assert after is state
            assert [type(action) for action in actions] == [act.Ignore]


def test_a_run_of_one_node_from_launch_to_success() -> None:
    story = Story()
    assert story.actions == (act.OpenNode(node="a"),)
    assert story.connect().actions == (act.OpenStore(node="a", attempt=0),)
    assert story.open_store().actions == (
        act.SpawnRanks(node="a", attempt=0, ranks=(0, 1), address="127.0.0.1", port=4000, generations=(0, 0)),
    )
    story.spawn(0)
    assert st.run_word(story.state) == "starting"
    story.spawn(1)
    assert st.run_word(story.state) == "running"
    assert story.end(1).actions == ()
    assert story.end(0).actions == (act.ClearNode(node="a", attempt=0),)
    assert story.clear().actions == (act.CloseNode(node="a"),)
    assert story.close().outcome() == ("succeeded", "")


def test_an_empty_journal_is_no_run() -> None:
    assert replay([]) is None
    assert replay([ev.SupervisorStarted(at=1.0, pid=1)]) is None


@pytest.mark.parametrize(("status", "words"), [(0, "exit 0"), (3, "exit 3"), (-9, "SIGKILL"), (-99, "signal 99")])
def test_a_status_is_told_in_words(status: int, words: str) -> None:
    assert st.status_words(status) == words


def test_an_event_whose_replay_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal of another version, or a defect: without the event, the run can at least be stopped."""
    story = Story(TWO).run()

    def fail(state: st.RunState, event: ev.StoreOpened) -> Step:
        raise KeyError("defect")

    monkeypatch.setattr(machine, "store_opened", fail)
    state = replay(story.journal)
    assert state is not None
    assert [st.rank_word(phase) for phase in state.ranks] == ["running"] * 3
    assert len(tell_all(story.journal)) > 1


def test_a_sentence_that_can_not_be_made_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> tuple[str, str]:
        raise KeyError("defect")

    journal = Story(TWO).run().journal
    monkeypatch.setattr("engine.core.views.story._words", fail)
    assert {line.text for line in tell_all(journal)} == {type(event).__name__ for event in journal}
