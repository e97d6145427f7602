"""`launch.wrap`: ranks and their store run in a container, the agent outside. The container is a stand-in, a script."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support import wait_until

CONTAINER = """#!/bin/sh
# Runs a command, as a child, with the programs of an image: a stand-in for a container.
export IMAGE="$1" PATH="$1:$PATH"
shift
"$@"
exit $?
"""


@pytest.fixture
def container(work, write_script):
    """The words of a container whose Python, `python-inside`, exists nowhere else."""
    words = [str(write_script("container", CONTAINER)), str(work / "image")]
    python = write_script("image/python-inside", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for file in (words[0], python):
        os.chmod(file, 0o755)
    return words


def test_ranks_and_their_store_run_in_a_container(rankdeck, write_script, write_profile, container):
    script = write_script("train.py", """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(os.environ["IMAGE"], os.environ["RANK_WORD"], int(total), flush=True)
dist.destroy_process_group()
""")  # fmt: skip
    wrap = {"launch": {"wrap": container, "python": "python-inside"}, "rank": {"wrap": ["env", "RANK_WORD={rank}"]}}
    run = rankdeck.launch(write_profile(script, 2, **wrap))
    rankdeck.wait_state(run, "succeeded")
    assert [rankdeck.log(run, rank) for rank in range(2)] == [
        b"%s %d 2\n" % (container[1].encode(), rank) for rank in range(2)
    ]


def test_a_rank_in_a_container_is_killed_restarted_and_stopped(rankdeck, write_script, write_profile, container):
    script = write_script("train.py", "import time\nprint('up', flush=True)\ntime.sleep(600)")
    launch = {"wrap": container, "python": "python-inside", "stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}
    run = rankdeck.launch(write_profile(script, 2, launch=launch))
    wait_until(lambda: rankdeck.log(run, 0) and rankdeck.log(run, 1), what="both ranks are up")
    assert rankdeck("kill", run, "--rank", "1").returncode == 0
    rankdeck.wait_state(run, "holding")
    assert rankdeck("restart", run).returncode == 0
    rankdeck.wait_state(run, "running")
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")


def test_a_container_that_is_not_there_is_told_before_the_launch(rankdeck, write_script, write_profile):
    profile = write_profile(write_script("train.py", "pass"), 1, launch={"wrap": ["nonesuch", "exec"]})
    done = rankdeck("launch", profile)
    assert done.returncode != 0
    assert "there is no program 'nonesuch'" in done.stderr
    assert "correct launch.wrap" in done.stderr
