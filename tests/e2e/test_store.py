"""A store that ends before its ranks have met ends the attempt: torch would let ranks wait for minutes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import Deck, kill_hard, wait_until

MEET = """
import os, time
if os.environ["RANK"] == "1":
    while not os.path.exists("go"):
        time.sleep(0.02)
import torch.distributed as dist
dist.init_process_group("gloo")
"""


def launched(rankdeck: Deck, write_script, write_profile, **launch) -> str:
    script = write_script("meet.py", MEET)
    return rankdeck.launch(write_profile(script, ranks=2, launch={"on_failure": "hold", **launch}))


@pytest.fixture
def python_without_store(tmp_path: Path):
    """Writes a Python whose stores end at once, with this status."""

    def write(status: int) -> Path:
        path = tmp_path / "python"
        ends = f"case \"$*\" in *store_host*) echo 'Boom: no libuv' >&2; exit {status};; esac"
        path.write_text(f'#!/bin/sh\n{ends}\nexec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return path

    return write


def test_a_store_that_torch_can_not_open_ends_the_run_with_its_last_line_and_a_next_step(
    rankdeck, write_script, write_profile, python_without_store
):
    python = python_without_store(70)
    run = launched(rankdeck, write_script, write_profile, python=str(python), warm=False)  # rank 1 never comes
    reason = rankdeck.wait_state(run, "failed")["doing"]
    assert reason.startswith(
        "the store could not start: its process ended with exit 70: Boom: no libuv; `rankdeck check`"
    )
    assert str(rankdeck.folder(run) / "attempt_0" / "store.log") in reason


def test_ranks_that_come_to_a_store_that_is_gone_are_ended(rankdeck, write_script, write_profile, python_without_store):
    python = python_without_store(3)
    run = launched(rankdeck, write_script, write_profile, python=str(python), warm=False)
    reason = rankdeck.wait_state(run, "failed")["doing"]
    assert reason.startswith(
        "the store was lost before rank 0 had joined: its process ended with exit 3: Boom: no libuv"
    )


def test_a_store_that_is_killed_while_ranks_wait_in_it_ends_them(rankdeck, write_script, write_profile, work):
    run = launched(rankdeck, write_script, write_profile, on_failure="stop")
    rankdeck.wait_status(run, lambda status: "1 of 2 wait" in status["doing"])
    (store,) = wait_until(lambda: rankdeck.of_role("store"))
    kill_hard(store)
    rankdeck.wait_state(run, "failed")  # a rank that is connected already may fail by itself first


def test_ranks_that_lost_their_store_start_again_with_another(rankdeck, write_script, write_profile, work):
    run = launched(rankdeck, write_script, write_profile, on_failure="restart", max_restarts=1)
    rankdeck.wait_status(run, lambda status: "1 of 2 wait" in status["doing"])
    (store,) = wait_until(lambda: rankdeck.of_role("store"))
    kill_hard(store)
    rankdeck.wait_status(run, lambda status: status["attempt"] == 1)
    (work / "go").touch()
    assert rankdeck.wait_state(run, "succeeded")["attempt"] == 1
