"""The backend mpi: mpirun knows the ranks, and all else is as with any other backend."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.quickstart import SMALL
from tests.support import ROOT, WHEEL, Deck, Process, check_err, entries, is_alive, kill_hard, use_mpi, wait_until

TRAIN = entries("e2e/mpi", "train")


@pytest.fixture(params=["openmpi", "mpich", "wheel"])
def implementation(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Puts one MPI in front of the PATH, where both are installed."""
    pytest.importorskip("mpi4py")
    use_mpi(request.param, tmp_path, monkeypatch)
    return str(request.param)


@pytest.fixture
def launch(rankdeck, write_profile, implementation) -> Callable[..., str]:
    """Launches the script, and waits until its ranks have met."""

    def launch(what: str, ranks: int = 2, **sections: Any) -> str:
        run: str = rankdeck.launch(write_profile(TRAIN, ranks=ranks, backend={"name": "mpi"}, **sections, args=[what]))
        for rank in range(ranks):
            rankdeck.wait_log(run, rank, f"up {rank} {ranks} mpi {ranks * (ranks + 1) / 2}\n".encode())
        return run

    return launch


def of_mpi(deck: Deck) -> list[Process]:
    return [one for one in deck.processes() if "mpirun" in one.command or "mpi_proxy" in one.command]


@pytest.mark.parametrize("warm", [False, True])
def test_ranks_are_like_any_others(rankdeck, launch, work, implementation, warm):
    run = launch("train", ranks=3 if implementation == "openmpi" else 2, launch={"warm": warm})
    status = rankdeck.status(run)
    assert status["state"] == "running"
    assert all(is_alive(rank["pid"]) for rank in status["ranks"])
    rankdeck.ends(run, work / "finish")
    ranks = rankdeck.status(run)["ranks"]
    assert [rankdeck.log(run, rank["rank"]).splitlines()[-1] for rank in ranks] == [
        f"done {rank['rank']}".encode() for rank in ranks
    ]
    assert {rank["exit"] for rank in ranks} == {0}
    wait_until(lambda: not rankdeck.processes())


FAILURES = [("raise", 1, "raised ValueError"), ("exit", 3, "exit"), ("crash", -11, "SIGSEGV")]


@pytest.mark.parametrize(("what", "status", "said"), FAILURES)
def test_a_failed_rank_is_the_cause_of_the_end_whatever_mpi_does_to_the_others(rankdeck, launch, what, status, said):
    run = launch(what, launch={"on_failure": "stop"})
    after = rankdeck.wait_state(run, "failed", seconds=60)
    assert after["ranks"][1]["exit"] == status
    assert "rank 1" in after["failure"]["headline"]
    assert said in after["failure"]["headline"]
    wait_until(lambda: not rankdeck.processes())


def test_a_failed_rank_holds_the_run_whatever_mpi_does_to_the_others(rankdeck, launch):
    run = launch(",".join(what for what, _, _ in FAILURES), launch={"on_failure": "hold"})
    for attempt, (_, status, said) in enumerate(FAILURES):
        if attempt:
            rankdeck("restart", run)
            rankdeck.wait_status(run, lambda after, attempt=attempt: after["attempt"] == attempt)
        after = rankdeck.wait_state(run, "holding", seconds=60)
        assert after["ranks"][1]["exit"] == status
        assert "rank 1" in after["failure"]["headline"]
        assert said in after["failure"]["headline"]
        assert is_alive(after["ranks"][0]["pid"])
    rankdeck("stop", run)
    wait_until(lambda: not rankdeck.processes())


def test_a_rank_that_hangs_can_be_stopped(rankdeck, launch):
    run = launch("hang")
    rankdeck("stop", run)
    rankdeck.wait_state(run, "stopped", seconds=60)
    wait_until(lambda: not rankdeck.processes())


def test_a_restart_is_a_new_attempt_of_all_and_agent_and_supervisor_that_are_killed_cost_nothing(
    rankdeck, launch, work
):
    run = launch("train")
    kill_hard(rankdeck.pids(run)[1])
    rankdeck.wait_state(run, "holding")
    assert (
        "start attempt 1 of all 2 ranks (no rejoin: the script does not use rankdeck.elastic, or had not reached it)"
        in rankdeck("restart", run).stdout
    )
    rankdeck.wait_log(run, 1, b"up", attempt=1)
    before = rankdeck.pids(run)
    old = rankdeck.agent(run)
    kill_hard(old)
    wait_until(lambda: rankdeck.agent(run) != old)
    kill_hard(rankdeck.supervisor(run))
    after = rankdeck.wait_state(run, "running")
    assert [rank["pid"] for rank in after["ranks"]] == before
    rankdeck.ends(run, work / "finish")
    wait_until(lambda: not rankdeck.processes())


def test_a_killed_mpirun_takes_its_ranks_along(rankdeck, launch):
    run = launch("train", launch={"on_failure": "stop"})
    for process in of_mpi(rankdeck):
        if "mpi_proxy" not in process.command.split("mpirun")[0]:
            kill_hard(process.pid)
    rankdeck.wait_state(run, "failed", seconds=60)
    wait_until(lambda: not rankdeck.processes())


def test_the_recipe_trains_on_it(rankdeck, implementation):
    run = rankdeck.launch("mpi-local", "--set", f"recipe.args={json.dumps(['--steps', '6', *SMALL])}")
    assert rankdeck("wait", run, seconds=120).returncode == 0, rankdeck("logs", run).stdout
    status = rankdeck.status(run)
    assert [rank["step"] for rank in status["ranks"]] == [6, 6]
    assert status["ranks"][0]["loss"] < 6


def test_the_mpirun_that_the_set_up_has_installed_is_found_without_a_path(rankdeck, monkeypatch, tmp_path):
    if not os.path.exists(WHEEL):
        pytest.skip("there is no .venv/openmpi: `make` installs it")
    monkeypatch.setenv("PATH", str(tmp_path))
    run = rankdeck.launch("mpi-local", "--set", f"recipe.args={json.dumps(['--steps', '2', *SMALL])}")
    assert rankdeck("wait", run, seconds=120).returncode == 0, rankdeck("logs", run).stdout
    words = ["--ranks", "2", "--sizes", "4", "--collectives", "all_reduce", "--rounds", "1"]
    bench = subprocess.run([sys.executable, ROOT / "benchmarks/collectives.py", *words], capture_output=True, text=True)
    assert bench.returncode == 0, bench.stderr


def test_without_an_mpirun_the_launch_is_refused(rankdeck, no_mpirun):
    check_err(rankdeck("launch", "mpi-local"), 3, "there is no mpirun", "openmpi-bin")


def test_an_mpirun_that_starts_nothing_says_why(rankdeck, write_profile, tmp_path, monkeypatch):
    fake = tmp_path / "bin" / "mpirun"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.4" && exit\necho no slots left; exit 1\n'
    )
    fake.chmod(0o700)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    run = rankdeck.launch(
        write_profile(TRAIN, ranks=2, backend={"name": "mpi"}, launch={"on_failure": "stop"}, args=["train"])
    )
    assert "mpirun ended: no slots left" in str(rankdeck.wait_state(run, "failed")["failure"])


def test_an_mpirun_that_fails_before_it_starts_a_rank_is_started_once_more(
    rankdeck, write_profile, tmp_path, monkeypatch
):
    use_mpi("openmpi", tmp_path, monkeypatch)
    mpirun = tmp_path / "bin" / "mpirun"
    real, once = mpirun.resolve(), tmp_path / "once"
    mpirun.unlink()
    mpirun.write_text(
        f'#!/bin/sh\nif [ "$1" != --version ] && mkdir {once} 2>/dev/null; then echo no interface; exit 1; fi\nexec {real} "$@"\n'
    )
    mpirun.chmod(0o700)
    done = rankdeck(
        "launch", write_profile("import os; print('rank', os.environ['RANK'])", ranks=2, backend={"name": "mpi"})
    )
    assert done.returncode == 0, done.stderr
    assert once.is_dir()


def test_an_mpi4py_of_another_mpi_is_found_before_the_launch(rankdeck, write_profile, tmp_path, monkeypatch):
    use_mpi("openmpi", tmp_path, monkeypatch)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(WHEEL).parent.parent / "lib"))
    done = rankdeck("launch", write_profile(TRAIN, backend={"name": "mpi"}))
    check_err(done, 3, "mpi4py uses Open MPI 5", "every rank would be alone", "LD_LIBRARY_PATH")


def shared_files(pid: int) -> set[str]:
    """Files in shared memory that a process uses."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {words[5] for line in lines if len(words := line.split()) == 6 and words[5].startswith("/dev/shm/")}


def test_ranks_that_are_killed_with_mpirun_leave_no_shared_memory(rankdeck, launch, implementation):
    run = launch("train")
    pids = rankdeck.pids(run)
    used = set().union(*map(shared_files, pids))
    assert [path for path in used if "_segment." in path] or implementation == "mpich"
    for pid in (*[one.pid for one in of_mpi(rankdeck)], *pids):  # mpirun would remove the files
        kill_hard(pid)
    rankdeck("stop", run, "--now")
    wait_until(lambda: rankdeck.processes() == [])
    assert [path for path in used if Path(path).exists()] == []


def test_ranks_that_end_leave_no_shared_memory(rankdeck, launch, work):
    run = launch("train")
    folders = {Path(path).parent for path in set().union(*map(shared_files, rankdeck.pids(run)))} - {Path("/dev/shm")}
    rankdeck.ends(run, work / "finish")
    assert [folder for folder in folders if folder.exists()] == []
