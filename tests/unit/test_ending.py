"""What the agent tells of a rank's end: whether it was told to stop before."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.linux.processes import start_time
from engine.node.agent.ranks.ending import Ending
from engine.node.agent.state import NodeState, Rank
from tests.support import PATIENCE


@pytest.mark.parametrize("adopted", [False, True])
def test_a_rank_that_is_ending_when_the_ladder_begins_has_ended_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopted: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    state, told = NodeState("mark", os.getpid()), list[dict[str, Any]]()
    state.terms = {"stop_ladder": [["SIGTERM", 600]], "stop_patience": 0.0}
    ending = Ending(state, lambda **message: told.append(message), lambda rank: {}, lambda: None)
    failed = subprocess.Popen(["sh", "-c", "exit 42"], start_new_session=True)
    stopped = subprocess.Popen(["sleep", str(PATIENCE)], start_new_session=True)
    for number, process in enumerate((failed, stopped)):
        rank = state.ranks[number] = Rank(number, ["out", "err", "metrics"])
        rank.pid, rank.start, rank.adopted = process.pid, start_time(process.pid), adopted
    os.waitid(os.P_PID, failed.pid, os.WEXITED | os.WNOWAIT)
    ending.start_ladder(at_once=False)
    for rank, process in zip(state.ranks.values(), (failed, stopped), strict=True):
        ending.ended(rank, process.wait(PATIENCE))
    assert [(end["status"], end["by_itself"]) for end in told] == [(42, True), (-signal.SIGTERM, False)]
