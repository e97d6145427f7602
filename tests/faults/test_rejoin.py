"""A rank dies after other processes of rankdeck have died: the ranks meet again in one generation, or all start again."""

import json
import os
from typing import Any

import pytest

from tests.elastic_runs import TRAIN, assert_kept, pids, reached, wait_for_another
from tests.support import Deck, kill_hard, parent_of, wait_gone, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def run(request, rankdeck, write_profile) -> str:
    """An elastic training of three ranks, or of another number by `parametrize`, that ends when there is a file `finish`."""
    policy = {"warm": True, "on_failure": "restart", "max_restarts": 9}
    ranks = getattr(request, "param", 3)
    run: str = rankdeck.launch(write_profile(TRAIN, ranks=ranks, launch=policy, args=["1000000", "0.05"]))
    return run


def trains_on(deck: Deck, run: str) -> Any:
    """Waits until every rank has finished a step that no rank had finished before. Returns the status."""
    furthest = max(rank["step"] or 0 for rank in deck.status(run)["ranks"])
    return reached(deck, run, furthest + 1)


def templates(deck: Deck) -> list[int]:
    """Without what they have just forked, which is called as they are for a moment."""
    found = deck.of_role("template")
    return [pid for pid in found if parent_of(pid) not in found]


def next_template(deck: Deck, *old: int) -> int:
    return wait_until(lambda: next((pid for pid in templates(deck) if pid not in old), 0), what="a template")


def replace_agent(deck: Deck, run: str) -> None:
    """Kills the agent, and waits until the next agent is connected."""
    agent = deck.agent(run)
    kill_hard(agent)
    wait_gone(agent)
    wait_until(lambda: deck.agent(run) != agent, what="another agent")


def lose_store(deck: Deck, run: str) -> None:
    """Kills the store, and waits until the run says that it is lost."""
    noted = json.loads((deck.folder(run) / "nodes" / "localhost" / "agent.json").read_bytes())
    kill_hard(noted["store"]["pid"])
    deck.wait_status(run, lambda status: "store is lost" in status["doing"])


def finish(deck: Deck, run: str) -> None:
    open("finish", "w").close()
    assert deck("wait", run).returncode == 0


def test_a_rank_rejoins_from_a_template_after_its_agent_was_killed(rankdeck, run):
    before = pids(trains_on(rankdeck, run))
    old = next_template(rankdeck)
    replace_agent(rankdeck, run)
    trains_on(rankdeck, run)
    template = next_template(rankdeck, old)
    kill_hard(before[1])
    wait_for_another(rankdeck, run, 1, before[1])
    after = trains_on(rankdeck, run)
    assert after["attempt"] == 0
    assert parent_of(pids(after)[1]) == template
    assert_kept(rankdeck, run, before, after, 0, 2)
    finish(rankdeck, run)


def test_a_template_that_is_killed_is_made_again_before_a_rank_needs_it(rankdeck, run):
    before = pids(trains_on(rankdeck, run))
    old = next_template(rankdeck)
    kill_hard(old)
    template = next_template(rankdeck, old)
    kill_hard(before[1])
    wait_for_another(rankdeck, run, 1, before[1])
    after = trains_on(rankdeck, run)
    assert parent_of(pids(after)[1]) == template
    finish(rankdeck, run)


def test_templates_that_are_killed_again_and_again_come_to_an_end(rankdeck, run):
    before = pids(trains_on(rankdeck, run))
    old: list[int] = []
    for _ in range(4):
        old.append(next_template(rankdeck, *old))
        kill_hard(old[-1])
    kill_hard(before[1])
    wait_for_another(rankdeck, run, 1, before[1])
    after = trains_on(rankdeck, run)
    assert parent_of(pids(after)[1]) == rankdeck.agent(run)
    assert templates(rankdeck) == []
    finish(rankdeck, run)


def test_a_store_that_dies_after_its_agent_was_killed_is_noticed(rankdeck, run):
    before = pids(trains_on(rankdeck, run))
    replace_agent(rankdeck, run)
    lose_store(rankdeck, run)
    kill_hard(before[1])
    rankdeck.wait_status(run, lambda status: status["attempt"] == 1)
    trains_on(rankdeck, run)
    finish(rankdeck, run)


def test_a_training_that_outlives_its_store_ends_well(rankdeck, run):
    """Ranks can't agree on the end then, and no rank could get the state any more: they do not wait, nor train again."""
    trains_on(rankdeck, run)
    lose_store(rankdeck, run)
    trains_on(rankdeck, run)
    finish(rankdeck, run)
    status = rankdeck.status(run)
    assert (status["attempt"], status["state"]) == (0, "succeeded")


@pytest.mark.parametrize("run", [2], indirect=True)
def test_ranks_that_are_not_told_of_a_rejoin_start_again_together(rankdeck, run):
    """News go into a pipe that the store does not read: each rank would wait in a generation of its own for ever. The one with the state
    gives up, so that both start again at once: nobody waits until a meeting is overdue. With three ranks, one rank may wait for
    the other survivor only, and notices nothing before that one ends."""
    before = pids(trains_on(rankdeck, run))
    news = rankdeck.folder(run) / "attempt_0" / "store.news"
    news.unlink()
    os.mkfifo(news, 0o600)
    kill_hard(before[1])
    rankdeck.wait_status(run, lambda status: status["attempt"] == 1)
    trains_on(rankdeck, run)
    assert "RejoinOverdue" not in [event["event"] for event in rankdeck.journal(run)]
    finish(rankdeck, run)
