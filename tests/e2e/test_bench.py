"""`rankdeck bench`, with real ranks over real backends."""

import json
import re
import signal
from typing import Any

import pytest

from tests.fake_ssh import fake_ssh, fake_ssh_hosts
from tests.support import DEADLINE, PATIENCE, Deck, check_err, from_table, use_mpi, wait_until

__all__ = ["fake_ssh", "fake_ssh_hosts"]  # fixtures

FEW = ("--sizes", "4,64K", "--seconds", "0.01")
MOVING = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"]

pytestmark = pytest.mark.slow


@pytest.fixture
def mpi(tmp_path, monkeypatch):
    pytest.importorskip("mpi4py")
    use_mpi("openmpi", tmp_path, monkeypatch)


def benched(rankdeck: Deck, *words: str, status: int = 0) -> Any:
    """What `rankdeck bench --json` says."""
    done = rankdeck("bench", "--json", *words, seconds=2 * DEADLINE)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def test_backends_are_measured_one_after_the_other_and_their_results_stay(rankdeck, mpi):
    done = rankdeck("bench", "--backends", "gloo,mpi", "--collectives", "all", *FEW, seconds=2 * DEADLINE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("                    gloo                             mpi\n") == len(MOVING) + 1
    assert "x: times as fast as gloo" in done.stdout
    runs = re.findall(r"^rankdeck: \w+: (bench-\w+-\w{4}), 2 ranks on localhost$", done.stderr, re.MULTILINE)
    assert [run[:-5] for run in runs] == ["bench-gloo", "bench-mpi"]
    assert [rankdeck.status(run)["state"] for run in runs] == ["succeeded", "succeeded"]

    compared = rankdeck("bench", "--compare", *runs)
    assert compared.returncode == 0, compared.stderr
    assert re.search(rf"{runs[0]}: gloo +{runs[1]}: mpi", compared.stdout)
    found = json.loads(rankdeck("bench", "--compare", *runs, "--json").stdout)
    for outcome in found:
        kinds = {(result["collective"], result["bytes"]) for result in outcome["results"]}
        assert {kind for kind, _ in kinds} == {*MOVING, "barrier"}
        assert {("all_reduce", 4), ("all_gather", 8), ("barrier", 0)} <= kinds
        assert all(0 < result["median_us"] <= result["p95_us"] for result in outcome["results"])
    assert rankdeck.processes() == []


def test_results_come_back_from_another_node(rankdeck, fake_ssh):
    (outcome,) = benched(rankdeck, "--backends", "gloo", "--nodes", "nodea", "--ranks", "2", *FEW)
    assert outcome["state"] == "succeeded"
    assert [result["bytes"] for result in outcome["results"]] == [4, 1 << 16]
    assert {call.host for call in fake_ssh.calls()} == {"nodea"}


def test_a_run_is_compared_with_the_one_before_it_of_the_same_backend_and_layout(rankdeck):
    words = ("--backends", "gloo", *FEW)
    (first,) = benched(rankdeck, *words)
    check_err(rankdeck("bench", "--compare", "-"), 2, "no earlier run has")
    benched(rankdeck, *words, "--ranks", "1")
    done = rankdeck("bench", *words, seconds=2 * DEADLINE)
    hint = re.search(r"rankdeck bench --compare (\S+) (\S+)", done.stderr)
    assert hint is not None
    assert hint[1] == first["run"]
    compared = rankdeck("bench", "--compare", "-")
    assert re.search(rf"{hint[1]}: gloo +{hint[2]}: gloo", compared.stdout)
    assert f"x: times as fast as {hint[1]}: gloo" in " ".join(compared.stdout.split())


def test_a_backend_that_is_missing_is_named_with_the_reason_and_the_others_go_on(rankdeck, no_mpirun):
    gloo, missing = benched(rankdeck, "--backends", "gloo,mpi", *FEW)
    assert gloo["state"] == "succeeded"
    assert missing["run"] == ""
    assert missing["problem"] == "there is no mpirun"
    assert "load your site's MPI module" in missing["hint"]
    (missing,) = benched(rankdeck, "--backends", "mpi", *FEW, status=3)
    assert missing["problem"] == "there is no mpirun"


def test_a_run_that_fails_is_explained_and_the_others_go_on(rankdeck, mpi):
    found = benched(rankdeck, "--backends", "gloo,mpi", "--sizes", "8:4", status=1)
    assert [outcome["state"] for outcome in found] == ["failed", "failed"]
    assert all("8 is more than 4: the smaller size comes first" in outcome["problem"] for outcome in found)
    check_err(rankdeck("bench", "--compare", "-"), 2, "has no results")


def test_ctrl_c_stops_the_run_and_shows_what_there_is(rankdeck):
    with rankdeck.start("bench", "--backends", "gloo", "--sizes", "4:64M", "--seconds", "0.5") as command:
        folder = rankdeck.home / "runs"
        measured = lambda: [path for path in folder.glob("*/attempt_0/rank_0.metrics") if b"bytes" in path.read_bytes()]  # noqa: E731
        (metrics,) = wait_until(measured, what="a result")
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130, err
    assert out.startswith("all_reduce, float32\n")
    assert "  4 B" in out
    assert "64 MiB" not in out
    assert rankdeck.status(metrics.parents[1].name)["state"] == "stopped"
    assert rankdeck.processes() == []


@from_table
def test_a_wrong_word_starts_nothing(words, said, rankdeck):
    check_err(rankdeck("bench", *words), 2, said)
    assert not (rankdeck.home / "runs").exists()
