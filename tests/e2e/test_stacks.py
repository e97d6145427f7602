"""`rankdeck stacks` shows where every rank is, also one that hangs in a collective, and harms nobody."""

import json
from typing import Any

import pytest

from tests.support import entries, use_mpi, wait_until

HANG = entries("e2e/stacks", "hang")
LATE = entries("e2e/stacks", "late")
WITH_CHILD = entries("e2e/stacks", "with_child")
PLAIN = "import time\nprint('up', flush=True)\ndef nap():\n    time.sleep(600)\nnap()"


def told(deck, run, text: str) -> str:
    """What `rankdeck stacks` says, once this is in it: a rank says that it is up before it gets there."""

    def said() -> str:
        printed: str = deck("stacks", run).stdout
        return printed if text in printed else ""

    return wait_until(said, what=f"stacks has {text!r}")


def test_ranks_that_hang_in_a_collective_are_folded(rankdeck, launch):
    run = launch(HANG, ranks=3, launch={"warm": True}, says=b"up")
    said = told(rankdeck, run, "ranks 1-2: waiting in all_reduce")
    assert "wait_for_nobody" in said
    assert "rank 0: in <module> (job.py:" in said
    assert "template.py" not in said
    assert "forked.py" not in said
    rankdeck.wait_state(run, "running")
    rankdeck("stop", run, "--now")


def waits(deck, run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(deck("stacks", run, "--json").stdout)["collectives"]
    return found


def wait_sentence(deck, run, begin: str) -> dict[str, Any]:
    """Waits until it is told of a collective that ranks wait in, which takes a second."""
    return wait_until(
        lambda: next((one for one in waits(deck, run) if one["sentence"].startswith(begin)), {}), what=begin
    )


def test_a_child_of_a_rank_does_not_answer_for_it(rankdeck, work, launch):
    run = launch(WITH_CHILD, ranks=3, says=b"up")
    wait_sentence(rankdeck, run, "rank 1 has not called all_reduce")
    assert [[one["late"] for one in waits(rankdeck, run)] for _ in range(6)] == [[[1]]] * 6
    rankdeck("stop", run, "--now")
    wait_until(lambda: not rankdeck.processes())


SELF_STARTING = entries("e2e/stacks", "self_starting")


def test_a_script_that_starts_its_own_ranks_is_told_the_cure_and_runs_with_it(rankdeck, write_profile):
    profile = write_profile(SELF_STARTING)
    run = rankdeck.launch(profile)
    wait_until(lambda: 'launch.environment = "plain"' in rankdeck("status", run).stdout)
    assert told(rankdeck, run, "2 processes below rank 0").count("waiting for the process group") == 1
    rankdeck("stop", run, "--now")
    wait_until(lambda: not rankdeck.processes())
    outside = {"RANK": "7", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    done = rankdeck("launch", profile, "--set", "launch.environment=plain", env=outside)
    assert (done.returncode, done.stdout.count("met 2")) == (0, 2), done.stderr


@pytest.mark.parametrize("warm", [True, False])
def test_the_rank_that_others_wait_for_in_a_collective_is_named(rankdeck, work, warm, launch):
    run = launch(LATE, ranks=3, launch={"warm": warm}, says=b"up")
    sentence = "rank 1 has not called all_reduce #3 of default_pg (9 x float32); ranks 0, 2 wait in it for "
    assert wait_sentence(rankdeck, run, sentence)["late"] == [1]
    lines = told(rankdeck, run, sentence).splitlines()
    assert lines[0].startswith(sentence)
    assert lines[1:3] == ["", "ranks 0, 2: waiting in all_reduce"]
    assert not any("other thread" in line for line in lines)
    rankdeck("kill", run, "--rank", "1", "--signal", "STOP")
    wait = wait_sentence(rankdeck, run, "ranks 0, 2 wait in all_reduce #3 of default_pg (9 x float32) for ")
    assert wait["sentence"].endswith("; rank 1 does not report its collectives")
    told(rankdeck, run, "rank 1: no stack: it does not answer; it may be stopped")
    rankdeck("kill", run, "--rank", "1", "--signal", "CONT")
    (work / "go").touch()
    sentence = "ranks call different operations as #4 of default_pg: "
    assert wait_sentence(rankdeck, run, sentence)["sentence"] == (
        f"{sentence}rank 0 broadcast(5 x float32), ranks 1, 2 all_reduce(3 x float32)"
    )
    rankdeck("stop", run, "--now")
    wait_until(lambda: not rankdeck.processes())


@pytest.mark.parametrize("implementation", ["openmpi", "mpich"])
def test_the_same_over_mpi(rankdeck, work, implementation, tmp_path, monkeypatch, launch):
    pytest.importorskip("mpi4py")
    use_mpi(implementation, tmp_path, monkeypatch)
    run = launch(LATE, ranks=3, backend={"name": "mpi"}, says=b"up")
    sentence = "rank 1 has not called all_reduce #3 of default_pg (9 x float32, SUM); ranks 0, 2 wait in it for "
    assert wait_sentence(rankdeck, run, sentence)["late"] == [1]
    rankdeck("stop", run, "--now")
    wait_until(lambda: not rankdeck.processes())


@pytest.mark.parametrize("imports", ["", "import rankdeck\n"])
def test_a_rank_that_was_executed_has_stacks_where_it_imports_rankdeck(rankdeck, imports, launch):
    run = launch(imports + PLAIN, says=b"up")
    told(rankdeck, run, "in nap (job.py" if imports else "no stack: it has no handler")
    rankdeck.wait_state(run, "running")
