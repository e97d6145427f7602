"""The backend ucc in a run: launched, checked before that, and with a rank that dies."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.elastic_runs import TRAIN as ELASTIC
from tests.support import PATIENCE, Deck, entries, kill_hard, wait_until
from tests.ucc.system import PROBE, need_ucc

TRAIN = entries("ucc/launch", "train")


@pytest.fixture
def launch(rankdeck, write_profile) -> Callable[..., str]:
    """Launches the script, and waits until its ranks have met."""

    def launch(ranks: int = 2, **launch: Any) -> str:
        sections = {"backend": {"name": "ucc"}, "launch": {"python": str(need_ucc()), **launch}}
        run: str = rankdeck.launch(write_profile(TRAIN, ranks=ranks, **sections))
        for rank in range(ranks):
            rankdeck.wait_log(run, rank, f"up {rank} {ranks} ucc ucc {ranks * (ranks + 1) / 2}\n".encode())
        return run

    return launch


@pytest.mark.parametrize("warm", [False, True])
def test_a_script_that_names_ucc_runs_on_a_stock_torch(rankdeck, launch, work, warm):
    run = launch(warm=warm)
    (work / "finish").touch()
    assert rankdeck("wait", run).returncode == 0
    assert [rankdeck.log(run, rank).splitlines()[-1] for rank in range(2)] == [b"done 0", b"done 1"]
    wait_until(lambda: not rankdeck.processes())


def test_a_rank_that_is_killed_is_the_cause_and_a_new_attempt_goes_on(rankdeck, launch, work):
    run = launch(on_failure="hold")
    kill_hard(rankdeck.pids(run)[1])
    held = rankdeck.wait_state(run, "holding")
    assert "rank 1" in held["failure"]["headline"]
    rankdeck.wait_log(run, 0, b"the process of rank 1 has ended", stream="err")
    assert rankdeck("restart", run).returncode == 0
    rankdeck.wait_log(run, 1, b"up", attempt=1)
    (work / "finish").touch()
    assert rankdeck("wait", run).returncode == 0


def test_the_shipped_profile_trains(rankdeck):
    python = need_ucc()
    words = ("--set", 'recipe.args=["--steps", "6"]', "--set", f'launch.python="{python}"')
    run = rankdeck.launch("ucc-local", *words)
    assert rankdeck("wait", run, seconds=120).returncode == 0, rankdeck("logs", run).stdout
    assert [rank["step"] for rank in rankdeck.status(run)["ranks"]] == [6, 6]


def test_a_missing_libucc_is_found_before_the_launch(rankdeck, tmp_path, monkeypatch):
    monkeypatch.setenv("RANKDECK_LIBUCC", str(tmp_path / "libucc.so.1"))
    done = rankdeck("launch", "ucc-local", "--set", f'launch.python="{sys.executable}"')
    assert done.returncode == 3, done.stderr
    assert "UCC can't be loaded" in done.stderr
    assert "RANKDECK_LIBUCC" in done.stderr
    assert "libucc-dev" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_setup_loads_is_found(rankdeck, tmp_path, monkeypatch):
    python = need_ucc()
    library = subprocess.run(
        [python, PROBE], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout.split()[1]
    monkeypatch.setenv("RANKDECK_LIBUCC", str(tmp_path / "libucc.so.1"))
    words = ("plan", "ucc-local", "--set", f'launch.python="{python}"')
    assert rankdeck(*words).returncode == 3
    done = rankdeck(*words, "--set", f"launch.setup=\"export RANKDECK_LIBUCC='{library}'\"")
    assert done.returncode == 0, done.stderr


def wait_step(deck: Deck, run: str, step: int) -> Any:
    """Waits until every rank has finished a step. Returns what is known of the ranks."""
    return deck.wait_status(run, lambda now: min(one["step"] or 0 for one in now["ranks"]) >= step)["ranks"]


@pytest.mark.parametrize("warm", [False, True])
def test_a_dead_rank_is_brought_back_with_all_the_others(rankdeck, write_profile, work, warm):
    sections = {"backend": {"name": "ucc"}, "launch": {"python": str(need_ucc()), "on_failure": "hold", "warm": warm}}
    run = rankdeck.launch(write_profile(ELASTIC, ranks=3, **sections, args=["100000", "0.05"]))
    before = wait_step(rankdeck, run, 10)
    kill_hard(before[1]["pid"])
    rankdeck.wait_state(run, "holding")
    done = rankdeck("restart", run)
    assert "start attempt 1 of all 3 ranks" in done.stdout
    assert "with ucc all ranks start together" in done.stdout
    rankdeck.wait_status(run, lambda now: now["attempt"] == 1 and now["state"] == "running")
    after = wait_step(rankdeck, run, 10)
    assert not {one["pid"] for one in after} & {one["pid"] for one in before}
    (work / "finish").touch()
    assert rankdeck("wait", run).returncode == 0
