"""`launch.wrap`: ranks and their store run in a container, the agent outside. The container is a stand-in: a script that changes the
environment, or one called apptainer that makes namespaces."""

import os
import shutil
import sys

import pytest

from tests import elastic_runs
from tests.support import checked, entries, kill_hard, wait_until

CONTAINER = entries("e2e/containers", "container")


APPTAINER = entries("e2e/containers", "apptainer")


@pytest.fixture(params=["environment", "namespaces"])
def container(work, write_script, monkeypatch, request):
    """The words of a container whose Python, `python-inside`, exists nowhere else."""
    image = work / "image"
    if request.param == "environment":
        script, words = write_script("container", CONTAINER), [str(work / "container"), str(image)]
    else:
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("needs root and unshare: the container consists of namespaces")
        script, words = write_script("bin/apptainer", APPTAINER), ["apptainer", "exec", "--nv", str(image)]
        monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    python = write_script("image/python-inside", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for file in (script, python):
        file.chmod(0o755)
    return words


def test_ranks_and_their_store_run_in_a_container(rankdeck, write_script, container, launch):
    script = write_script("train.py", """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(os.environ["IMAGE"], os.environ["RANK_WORD"], int(total), flush=True)
dist.destroy_process_group()
""")  # fmt: skip
    wrap = {"launch": {"wrap": container, "python": "python-inside"}, "rank": {"wrap": ["env", "RANK_WORD={rank}"]}}
    run = launch(script, 2, **wrap)
    rankdeck.wait_state(run, "succeeded")
    assert [rankdeck.log(run, rank) for rank in range(2)] == [
        b"%s %d 2\n" % (container[-1].encode(), rank) for rank in range(2)
    ]


def test_a_rank_in_a_container_is_killed_restarted_and_stopped(rankdeck, write_script, write_profile, container):
    script = write_script("train.py", "import rankdeck, time\nprint('up', flush=True)\ntime.sleep(600)")
    launch = {"wrap": container, "python": "python-inside", "stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}
    run = rankdeck.launch(write_profile(script, 2, launch=launch))
    wait_until(lambda: rankdeck.log(run, 0) and rankdeck.log(run, 1), what="both ranks are up")
    wait_until(
        lambda: "train.py:3" in rankdeck("stacks", run).stdout, what="stacks of ranks, or of processes below them"
    )
    assert rankdeck("kill", run, "--rank", "1").returncode == 0
    rankdeck.wait_state(run, "holding")
    assert rankdeck("restart", run).returncode == 0
    rankdeck.wait_state(run, "running")
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")


def test_a_rank_in_a_container_rejoins_and_the_other_keeps_its_process(
    rankdeck, write_script, write_profile, container, work
):
    recipe = {"script": str(write_script("train.py", elastic_runs.TRAIN)), "args": ["1000000", "0.05"]}
    launch = {"wrap": container, "python": "python-inside", "warm": True}  # which has no effect
    run = rankdeck.launch(write_profile(recipe, 2, launch=launch))
    before = elastic_runs.pids(elastic_runs.reached(rankdeck, run, 5))
    kill_hard(before[1])
    rankdeck.wait_status(run, lambda now: now["state"] == "holding" and now["ranks"][1]["exit"] is not None)
    furthest = max(rank["step"] for rank in rankdeck.status(run)["ranks"])
    assert "rejoin" in rankdeck("restart", run, "--failed").stdout
    after = elastic_runs.reached(rankdeck, run, furthest + 1)
    assert after["attempt"] == 0
    elastic_runs.assert_kept(rankdeck, run, before, after, 0)
    (work / "finish").touch()
    assert elastic_runs.result(rankdeck, run, ranks=2)


def test_check_looks_inside_the_container(rankdeck, write_profile, container):
    launch = {"wrap": container, "python": "python-inside"}
    found = checked(rankdeck, write_profile({"name": "linear"}, launch=launch))
    states = [found["localhost", check]["state"] for check in ("python", "torch", "workdir")]
    assert states == ["ok"] * 3
    launch["wrap"] = [*container[:-1], "/nonesuch"]
    trouble = checked(rankdeck, write_profile({"name": "linear"}, launch=launch, name="wrong"))["localhost", "python"]
    assert trouble["state"] == "fail"
    assert trouble["text"].startswith("launch.wrap does not start python-inside there: ")
