"""A full disk: nothing is corrupt, ranks train on, and what can't be written or started waits until there is room."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.runs.paths import RunPaths
from engine.runs.replay import stored_snapshot
from tests.elastic_runs import TRAIN, pids, reached
from tests.support import PATIENCE, check_err, entries, is_alive, kill_hard, wait_gone, wait_until

FULL = "No space left on device"


def fill_up(path: Path) -> None:
    """Makes a file that takes all the space there is."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)


def use_up_files(folder: Path) -> None:
    """Makes empty files until there can be no more."""
    folder.mkdir()
    with contextlib.suppress(OSError):
        for number in itertools.count():
            (folder / str(number)).touch()


COUNT_ELSEWHERE = entries("faults/full_disk", "count_elsewhere")


@pytest.fixture
def small_home(needs_root, tmp_path, request) -> Iterator[Path]:
    """The home, on a disk of three megabytes of its own; whatever of a run is left is ended before the disk goes."""
    home: Path = tmp_path / "home"
    home.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m,nr_inodes=2k", "none", str(home)]
    if subprocess.run(mount, timeout=PATIENCE, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    rankdeck = request.getfixturevalue("rankdeck")
    yield home
    (home / "filler").unlink(missing_ok=True)
    shutil.rmtree(home / "files", ignore_errors=True)
    rankdeck("stop", "-", "--now")
    rankdeck("wait", "-")
    wait_until(lambda: rankdeck.processes() == [])
    subprocess.run(["umount", "-l", str(home)], timeout=PATIENCE, check=True)


def test_on_a_full_disk_a_run_goes_on_says_so_and_writes_what_waited_when_there_is_room(
    small_home, rankdeck, work, launch
):
    run = launch(COUNT_ELSEWHERE, ranks=2)
    pids = [rank["pid"] for rank in rankdeck.wait_state(run, "running")["ranks"]]
    wait_until(lambda: (work / "count_0").exists() and (work / "count_1").exists())

    def counted() -> int:
        return int((work / "count_0").read_text())

    fill_up(small_home / "filler")
    rankdeck.wait_status(run, lambda status: FULL in status["doing"])
    first = rankdeck.supervisor(run)
    kill_hard(first)
    wait_gone(first)
    rankdeck.wait_status(run, lambda status: FULL in status["doing"])
    kill_hard(pids[1])
    status = rankdeck.wait_state(run, "holding")
    assert [rank["exit"] for rank in status["ranks"]] == [None, -9]
    reached = counted()
    wait_until(lambda: counted() > reached, what="the other rank goes on")

    (small_home / "filler").unlink()
    rankdeck.wait_status(run, lambda status: FULL not in status["doing"])
    ended = [event["rank"] for event in rankdeck.journal(run) if event["event"] == "RankEnded"]
    assert ended == [1], "what happened meanwhile is in the journal"
    wait_until(lambda: b"bytes of output are lost here: the disk was full" in rankdeck.log(run, 0))
    assert rankdeck.wait_state(run, "holding")["ranks"][0]["pid"] == pids[0]

    fill_up(small_home / "filler")
    rankdeck.wait_status(run, lambda status: FULL in status["doing"])
    assert rankdeck("stop", run, "--no-wait").returncode == 0
    wait_gone(pids[0])
    (small_home / "filler").unlink()
    wait_until(lambda: rankdeck.processes() == [], what="the end is written down")
    assert stored_snapshot(RunPaths(rankdeck.folder(run))).run.state == "failed"


def test_a_launch_on_a_full_disk_names_the_path_and_leaves_nothing(rankdeck, write_profile, needs_root, tmp_path):
    home = tmp_path / "full"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(home)]
    if subprocess.run(mount, timeout=PATIENCE, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        (home / "runs").mkdir(mode=0o700)
        fill_up(home / "filler")
        profile = write_profile("print('hello')")
        check_err(rankdeck("launch", profile, env={"RANKDECK_HOME": str(home)}), 1, f"{FULL}: '{home}/runs/job-")
        assert os.listdir(home / "runs") == []
    finally:
        subprocess.run(["umount", "-l", str(home)], timeout=PATIENCE, check=True)


def test_a_run_whose_disk_fills_up_before_its_first_ranks_says_so_and_can_be_restarted(
    small_home, rankdeck, work, launch
):
    """Its plan is written, and its node is not asked for anything yet. The first start does not wait for room."""
    waits = f"while [ ! -e {work}/go ]; do sleep 0.02; done"
    run = launch(COUNT_ELSEWHERE, ranks=2, launch={"setup": waits})
    fill_up(small_home / "filler")
    (work / "go").touch()
    rankdeck.wait_status(run, lambda status: status["state"] == "failed" and "a disk there is full" in status["doing"])
    assert not (work / "count_0").exists()
    (small_home / "filler").unlink()
    wait_until(lambda: rankdeck.processes() == [], what="the end is written down")
    assert stored_snapshot(RunPaths(rankdeck.folder(run))).run.state == "failed"
    assert rankdeck("restart", run).returncode == 0
    wait_until(lambda: (work / "count_0").exists() and (work / "count_1").exists())
    rankdeck.ends(run, work / "finish")


def test_a_run_that_succeeds_on_a_full_disk_is_written_down_when_there_is_room(small_home, rankdeck, work, launch):
    run = launch(COUNT_ELSEWHERE, ranks=2)
    first = pids(rankdeck.wait_state(run, "running"))
    wait_until(lambda: (work / "count_0").exists() and (work / "count_1").exists())
    fill_up(small_home / "filler")
    rankdeck.wait_status(run, lambda status: FULL in status["doing"])
    (work / "finish").touch()
    wait_gone(*first)
    supervisor = rankdeck.supervisor(run)
    assert is_alive(supervisor), "nobody else knows how the run has ended"
    (small_home / "filler").unlink()
    wait_gone(supervisor)
    status = rankdeck.wait_state(run, "succeeded")
    assert [rank["exit"] for rank in status["ranks"]] == [0, 0]
    assert rankdeck("wait", run).returncode == 0
    (line,) = json.loads(rankdeck("ps", "--all", "--json").stdout)
    assert (line["run"], line["state"]) == (run, "succeeded")


def wait_for_room(rankdeck, run: str, *, attempt: int) -> None:
    """Waits until the agent has found that there is no room for what it was asked to start."""
    status = rankdeck.wait_status(run, lambda status: "localhost waits for space on its disk, " in status["doing"])
    assert (status["state"], status["attempt"]) == ("starting", attempt)


@pytest.mark.parametrize("what", ["space", "files"])
def test_ranks_that_start_again_wait_for_room_and_use_up_no_restart(what, small_home, rankdeck, work, launch):
    policy = {"on_failure": "restart", "max_restarts": 1}
    run = launch(COUNT_ELSEWHERE, ranks=2, launch=policy)
    first = pids(rankdeck.wait_state(run, "running"))
    wait_until(lambda: (work / "count_0").exists() and (work / "count_1").exists())
    if what == "space":
        fill_up(small_home / "filler")
    else:
        use_up_files(small_home / "files")
    kill_hard(first[1])
    wait_for_room(rankdeck, run, attempt=1)
    agent = rankdeck.agent(run)
    kill_hard(agent)  # the next one is asked again
    wait_until(lambda: rankdeck.agent(run) not in (0, agent))
    (small_home / "filler").unlink(missing_ok=True)
    shutil.rmtree(small_home / "files", ignore_errors=True)
    status = rankdeck.wait_state(run, "running")
    assert status["attempt"] == 1
    assert not set(pids(status)) & set(first)
    rankdeck.ends(run, work / "finish")


def test_a_rank_that_rejoins_waits_for_room(small_home, rankdeck, work, launch):
    policy = {"warm": True, "on_failure": "restart", "max_restarts": 1}
    run = launch(TRAIN, ranks=2, launch=policy, args=["1000000", "0.05"])
    status = reached(rankdeck, run, 3)
    first, furthest = pids(status), max(rank["step"] for rank in status["ranks"])
    fill_up(small_home / "filler")
    kill_hard(first[1])
    wait_for_room(rankdeck, run, attempt=0)
    (small_home / "filler").unlink()
    status = reached(rankdeck, run, furthest + 10)
    assert status["attempt"] == 0
    assert pids(status)[0] == first[0]
    rankdeck.ends(run, work / "finish")


def test_a_run_that_waits_for_room_can_be_stopped(small_home, rankdeck, work, launch):
    policy = {"on_failure": "restart", "max_restarts": 1}
    run = launch(COUNT_ELSEWHERE, ranks=2, launch=policy)
    first = pids(rankdeck.wait_state(run, "running"))
    fill_up(small_home / "filler")
    kill_hard(first[1])
    wait_for_room(rankdeck, run, attempt=1)
    assert rankdeck("stop", run, "--no-wait").returncode == 0
    wait_gone(first[0])
    (small_home / "filler").unlink()
    wait_until(lambda: rankdeck.processes() == [], what="the end is written down")
    assert stored_snapshot(RunPaths(rankdeck.folder(run))).run.state == "stopped"
