"""A store or an agent that ends before the ranks have met ends the attempt: torch would let ranks wait for minutes."""

import sys
from pathlib import Path

import pytest

from tests.support import entries, from_table, kill_hard, wait_until

MEET = entries("e2e/store", "meet")


WITHOUT_AGENT = entries("e2e/store", "without_agent")
"""A Python whose agents fail at once."""


@pytest.fixture
def python_without(tmp_path: Path):
    """Writes a Python that ends at once, by a command of sh, if its command line is like a pattern of sh."""

    def write(pattern: str, end: str) -> Path:
        path = tmp_path / "python"
        ends = f"case \"$*\" in {pattern}) printf 'in torch\\nBoom: no libuv\\n' >&2; {end};; esac"
        path.write_text(f'#!/bin/sh\n{ends}\nexec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return path

    return write


@from_table
def test_a_store_that_fails_ends_the_run_with_its_last_lines_and_a_next_step(
    ends, reason, hint, rankdeck, launch, python_without
):
    python = python_without("*store_host*", ends)
    run = launch(
        MEET, ranks=2, launch={"python": str(python), "warm": False, "on_failure": "hold"}
    )  # rank 1 never comes
    doing = rankdeck.wait_state(run, "failed")["doing"]
    assert doing.startswith(f"{reason}: in torch | Boom: no libuv; {hint}")
    assert str(rankdeck.folder(run) / "attempt_0" / "store.log") in doing


def test_a_store_that_is_killed_while_ranks_wait_in_it_ends_them(rankdeck, launch, work):
    run = launch(MEET, ranks=2, launch={"on_failure": "stop"})
    rankdeck.wait_status(run, lambda status: "1 of 2 wait" in status["doing"])
    (store,) = wait_until(lambda: rankdeck.of_role("store"))
    kill_hard(store)
    # The rank may fail by itself before it is ended.
    assert "the store was lost before" in rankdeck.wait_state(run, "failed")["doing"]


def test_an_agent_that_ends_again_and_again_ends_the_run_with_its_last_lines(rankdeck, launch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{WITHOUT_AGENT}")
    python.chmod(0o755)
    run = launch(MEET, ranks=2, launch={"python": str(python), "warm": False, "on_failure": "hold"})
    reason = rankdeck.wait_state(run, "failed")["doing"]
    assert reason.startswith("localhost: its agent ended again and again with exit 99: ")
    assert (
        f" | RuntimeError: no room; `rankdeck check` tries the Python and the torch of the ranks; its output is in {rankdeck.folder(run)}"
        in reason
    )


def test_a_template_that_ends_at_once_leaves_the_run_going_on_without_it(rankdeck, python_without, launch):
    python = python_without("*template.py*", "exit 1")
    run = launch('import os; print("up", os.environ["RANK"])', ranks=2, launch={"python": str(python), "warm": True})
    found = rankdeck.wait_state(run, "succeeded", "failed")
    assert found["state"] == "succeeded"
    (warned,) = (event["text"] for event in rankdeck.journal(run) if event["event"] == "NodeWarned")
    assert warned.startswith("ranks start without the template: it ended: in torch | Boom: no libuv;")


def test_ranks_that_lost_their_store_start_again_with_another(rankdeck, launch, work):
    run = launch(MEET, ranks=2, launch={"on_failure": "restart", "max_restarts": 1})
    rankdeck.wait_status(run, lambda status: "1 of 2 wait" in status["doing"])
    (store,) = wait_until(lambda: rankdeck.of_role("store"))
    kill_hard(store)
    rankdeck.wait_status(run, lambda status: status["attempt"] == 1)
    (work / "go").touch()
    assert rankdeck.wait_state(run, "succeeded")["attempt"] == 1
