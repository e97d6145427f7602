"""`rankdeck stacks` shows where every rank is, also one that hangs in a collective, and harms nobody."""

from __future__ import annotations

import pytest

HANG = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("up", flush=True)
def wait_for_nobody():
    dist.all_reduce(torch.ones(1))
if os.environ["RANK"] == "0":
    import time
    time.sleep(600)
wait_for_nobody()
"""
PLAIN = "import time\nprint('up', flush=True)\ndef nap():\n    time.sleep(600)\nnap()"


def up(deck, run, ranks: int) -> None:
    for rank in range(ranks):
        deck.wait_log(run, rank, b"up")


def test_ranks_that_hang_in_a_collective_are_folded(rankdeck, write_script, write_profile):
    run = rankdeck.launch(write_profile(write_script("hang.py", HANG), ranks=3, launch={"warm": True}))
    up(rankdeck, run, 3)
    done = rankdeck("stacks", run)
    assert "ranks 1-2: waiting in all_reduce" in done.stdout
    assert "wait_for_nobody" in done.stdout
    assert "rank 0: in <module> (hang.py:" in done.stdout
    assert "template.py" not in done.stdout
    assert rankdeck.status(run)["state"] == "running"
    rankdeck("stop", run, "--now")


@pytest.mark.parametrize("imports", ["", "import rankdeck\n"])
def test_a_rank_that_was_executed_has_stacks_where_it_imports_rankdeck(rankdeck, write_script, write_profile, imports):
    run = rankdeck.launch(write_profile(write_script("nap.py", imports + PLAIN)))
    up(rankdeck, run, 1)
    said = rankdeck("stacks", run).stdout
    assert ("in nap (nap.py" in said) if imports else ("no stack: its Python was not prepared" in said)
    assert rankdeck.status(run)["state"] == "running"


def test_a_stopped_rank_is_told_and_the_others_are_shown(rankdeck, write_script, write_profile):
    run = rankdeck.launch(write_profile(write_script("nap.py", PLAIN), ranks=2, launch={"warm": True}))
    up(rankdeck, run, 2)
    rankdeck("kill", run, "--rank", "1", "--signal", "STOP")
    said = rankdeck("stacks", run).stdout
    assert "rank 0: in nap" in said
    assert "rank 1: no stack: it does not answer; it may be stopped" in said
    rankdeck("kill", run, "--rank", "1", "--signal", "CONT")


def test_a_run_that_has_ended_has_no_stacks(rankdeck, write_script, write_profile):
    run = rankdeck.launch(write_profile(write_script("say.py", "print('said')")))
    rankdeck("wait", run)
    done = rankdeck("stacks", run)
    assert done.returncode == 1
    assert f"{run} has ended" in done.stderr
