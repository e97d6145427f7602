"""The template dies, can't fork, or never becomes warm: no rank is lost, and every run ends as it should."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.support import Deck, entries, is_alive, kill_hard, parent_of, wait_gone, wait_until

GATE = entries("faults/template", "gate")
STAND_INS = entries("faults/template", "stand_ins")


@pytest.fixture
def launch(rankdeck, write_profile, work):
    """Launches two warm ranks that wait until there is a file `finish`."""

    def launch(*args: str, torch: str = "", **sections):
        if torch:
            (work / "stand_in").mkdir()
            (work / "stand_in" / "torch.py").write_text(torch)
            sections["env"] = {"PYTHONPATH": str(work / "stand_in")}
        ladder = {"stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}
        sections["launch"] = {"warm": True, **ladder, **sections.get("launch", {})}
        return rankdeck.launch(write_profile(GATE, ranks=2, **sections, args=list(args)))

    return launch


def started(deck: Deck, run: str) -> list[int]:
    for rank in range(2):
        deck.wait_log(run, rank, b"up")
    return deck.pids(run)


def test_a_template_that_is_killed_leaves_its_ranks_alone(rankdeck, launch, work):
    run = launch("3", launch={"on_failure": "stop"})
    ranks = started(rankdeck, run)
    template = parent_of(ranks[0])
    assert parent_of(template) == rankdeck.agent(run)
    kill_hard(template)
    wait_until(lambda: parent_of(ranks[0]) == rankdeck.agent(run))
    rankdeck.ends(run, work / "finish", status=3)
    first, second = (rank["exit"] for rank in rankdeck.status(run)["ranks"])
    assert first in (0, -signal.SIGTERM)  # the profile says to stop, and it may not have ended by then
    assert second == 3


def test_a_template_outlives_its_agent_as_long_as_it_has_ranks(rankdeck, launch, work):
    run = launch("3", launch={"on_failure": "stop"})
    ranks = started(rankdeck, run)
    template, agent = parent_of(ranks[0]), rankdeck.agent(run)
    kill_hard(agent)
    wait_until(lambda: rankdeck.agent(run) != agent)
    assert all(parent_of(pid) == template for pid in ranks)
    rankdeck.ends(run, work / "finish", status=3)
    first, second = (rank["exit"] for rank in rankdeck.status(run)["ranks"])
    assert first in (0, -signal.SIGTERM)  # the profile says to stop, and it may not have ended by then
    assert second == 3
    wait_gone(template)


def test_ranks_that_end_after_agent_warden_and_template_were_killed_are_lost_and_a_restart_mends_it(
    rankdeck, launch, work
):
    run = launch(launch={"on_failure": "hold"})
    ranks, agent = started(rankdeck, run), rankdeck.agent(run)
    for pid in (parent_of(agent), agent, parent_of(ranks[0])):
        kill_hard(pid)
    wait_until(lambda: rankdeck.agent(run) != agent)
    assert all(is_alive(pid) for pid in ranks)
    (work / "finish").touch()
    rankdeck.wait_status(run, lambda now: [rank["state"] for rank in now["ranks"]] == ["lost", "lost"])
    rankdeck("restart", run)
    rankdeck.wait_state(run, "succeeded")


def test_a_stop_while_torch_is_imported_ends_the_run_at_once(rankdeck, launch):
    run = launch(torch=STAND_INS["sleeps"])
    wait_until(lambda: (rankdeck.folder(run) / "nodes" / "localhost" / "template.log").exists())
    rankdeck("stop", run)
    rankdeck.wait_state(run, "stopped")  # within a deadline before that import ends
    wait_until(lambda: not rankdeck.processes())


@pytest.mark.parametrize("torch", [name for name in STAND_INS if name != "sleeps"])
def test_where_nothing_can_be_forked_ranks_are_executed(rankdeck, launch, work, torch):
    (work / "finish").touch()
    run = launch("3", torch=STAND_INS[torch], launch={"on_failure": "stop"})
    assert rankdeck("wait", run).returncode in (1, 3)
    status = rankdeck.status(run)
    log = Path(rankdeck.folder(run) / "supervisor.log").read_text()
    assert status["ranks"][1]["exit"] == 3 or "store" in str(status["failure"]), (status, log)


def test_a_stopped_template_does_not_stop_the_run_from_ending(rankdeck, launch):
    run = launch()
    template = parent_of(started(rankdeck, run)[0])
    os.kill(template, signal.SIGSTOP)
    rankdeck("stop", run, "--now")
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: not rankdeck.processes())


def test_a_run_that_holds_without_a_rank_lets_go_of_what_it_has_in_memory_and_can_be_restarted(rankdeck, launch, work):
    (work / "finish").touch()
    run = launch("fails")
    rankdeck.wait_status(run, lambda now: [rank["state"] for rank in now["ranks"]] == ["exited", "failed"])
    assert rankdeck.of_role("template")
    journal = rankdeck.folder(run) / "journal.jsonl"
    ages_ago = re.sub(rb'"at":1\d', b'"at":10', journal.read_bytes())
    with journal.open("rb+") as file:  # its supervisor appends to this file
        file.write(ages_ago)
    kill_hard(rankdeck.supervisor(run))
    wait_until(lambda: not rankdeck.of_role("template", "store"))
    (work / "finish").unlink()
    rankdeck("restart", run)
    for rank in range(2):
        rankdeck.wait_log(run, rank, b"up", attempt=1)
    again = rankdeck.pids(run)[0]
    assert parent_of(parent_of(again)) == rankdeck.agent(run)
    assert "StoreLost" not in [event["event"] for event in rankdeck.journal(run)]
