"""Jobs with a node more than their run needs: a run that loses a node goes on with the other one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import elastic_runs
from tests.conftest import WriteProfile, WriteScript
from tests.slurm.lab import Slurm, reason_to_skip
from tests.support import Deck, entries, kill_hard, wait_gone, wait_until

COUNT = entries("slurm/spares", "count")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    """Slurm with three nodes, which lives as long as these tests do."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Slurm(count=3) as slurm:
        yield slurm


@pytest.fixture
def run(slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile) -> str:
    """Two ranks on each of two nodes of a job that has three. They make steps."""
    layout = {"slurm": {"nodes": 2, "ranks_per_node": 2, "spares": 1}}
    ladder = {"stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}
    run: str = rankdeck.launch(write_profile(COUNT, 2, layout=layout, launch=ladder))
    wait_steps(rankdeck, run)
    return run


def wait_steps(deck: Deck, run: str, attempt: int = 0) -> None:
    for rank in range(4):
        deck.wait_log(run, rank, b"step 1\n", attempt=attempt)


def nodes_of(deck: Deck, run: str) -> list[str]:
    return [rank["node"] for rank in deck.status(run)["ranks"]]


def test_a_run_that_loses_a_node_goes_on_with_the_spare_one(slurm: Slurm, rankdeck: Deck, run: str, work: Path) -> None:
    assert nodes_of(rankdeck, run) == ["sl1", "sl1", "sl2", "sl2"]
    pids = rankdeck.pids(run)
    slurm.run("scontrol", "update", "nodename=sl2", "state=down", "reason=test")
    wait_steps(rankdeck, run, attempt=1)
    wait_gone(*pids)
    assert nodes_of(rankdeck, run) == ["sl1", "sl1", "sl3", "sl3"]
    (work / "finish").touch()
    rankdeck.wait_state(run, "succeeded")
    job = json.loads((rankdeck.folder(run) / "job.json").read_text())["job"]
    wait_until(lambda: slurm.state(job) == "COMPLETED", what="the job has ended")


def test_ranks_that_can_rejoin_do_so_on_the_spare_node_and_the_others_keep_their_process(
    slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile, work: Path
) -> None:
    layout = {"slurm": {"nodes": 2, "ranks_per_node": 2, "spares": 1}}
    script, args = write_script("train.py", elastic_runs.TRAIN), ["1000000", "0.05"]
    recipe = {"script": str(script), "args": args}
    run: str = rankdeck.launch(write_profile(recipe, 2, layout=layout))
    before = elastic_runs.pids(elastic_runs.reached(rankdeck, run, 20))
    slurm.run("scontrol", "update", "nodename=sl2", "state=down", "reason=test")
    wait_until(lambda: nodes_of(rankdeck, run) == ["sl1", "sl1", "sl3", "sl3"], what="the spare node has the ranks")
    furthest = max(rank["step"] or 0 for rank in rankdeck.status(run)["ranks"])
    after = elastic_runs.reached(rankdeck, run, furthest + 1)
    assert after["attempt"] == 0
    elastic_runs.assert_kept(rankdeck, run, before, after, 0, 1)
    supervisor = rankdeck.supervisor(run)
    kill_hard(supervisor)
    wait_until(lambda: rankdeck.supervisor(run) not in (supervisor, None), what="another supervisor")
    assert elastic_runs.reached(rankdeck, run, furthest + 20)["attempt"] == 0
    assert nodes_of(rankdeck, run) == ["sl1", "sl1", "sl3", "sl3"]
    (work / "finish").touch()
    assert elastic_runs.result(rankdeck, run)
    for rank in range(4):
        said = rankdeck.log(run, rank)
        assert b"\0" not in said
        assert said.startswith(b"enter 0\nenter "), "the output of both processes, in one file"


def test_a_run_that_loses_more_nodes_than_it_has_to_spare_holds(slurm: Slurm, rankdeck: Deck, run: str) -> None:
    slurm.run("scontrol", "update", "nodename=sl2", "state=down", "reason=test")
    wait_steps(rankdeck, run, attempt=1)
    slurm.run("scontrol", "update", "nodename=sl3", "state=down", "reason=test")
    rankdeck.wait_state(run, "holding")
    assert "it is not a node of Slurm's job" in rankdeck("status", run).stdout
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "failed")


def test_a_spare_node_that_is_lost_changes_nothing(slurm: Slurm, rankdeck: Deck, run: str, work: Path) -> None:
    slurm.run("scontrol", "update", "nodename=sl3", "state=down", "reason=test")
    (work / "finish").touch()
    assert rankdeck.wait_state(run, "succeeded")["attempt"] == 0


def test_a_run_whose_spare_node_was_lost_before_ends_in_words(slurm: Slurm, rankdeck: Deck, run: str) -> None:
    for node in ("sl3", "sl2"):
        slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    rankdeck.wait_state(run, "failed")
    assert "has 1 of 2 nodes left" in rankdeck("status", run).stdout
