"""How the end of a rank is learned that is no child of the agent."""

import time
from pathlib import Path
from typing import Any

import pytest

from engine.node.agent.ranks import ending
from engine.node.agent.state import NodeState, Rank
from tests.support import from_table

WARDEN, PID, START = 50, 60, 7


class Adopted:
    """An agent with one adopted rank, whose parent is the warden; `process` is what the kernel says of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.process: tuple[int, str, int] | None = (START, "S", WARDEN)
        self.now = 100.0
        self.told: list[dict[str, Any]] = []
        monkeypatch.setattr(ending, "process_status", lambda pid: self.process)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        state = NodeState("mark", WARDEN)
        rank = state.ranks[0] = Rank(0, ["out", "err", "metrics"])
        rank.pid, rank.start, rank.adopted = PID, START, True
        self._ending = ending.Ending(state, lambda **message: self.told.append(message), lambda rank: {}, lambda: None)

    def look(self, seconds: float) -> list[str]:
        """Looks twice, so many seconds apart. Returns the kinds of messages so far."""
        self._ending.watch_adopted()
        self.now += seconds
        self._ending.watch_adopted()
        return [message["type"] for message in self.told]


@pytest.fixture
def adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adopted:
    monkeypatch.chdir(tmp_path)
    return Adopted(monkeypatch)


def test_a_rank_that_its_parent_has_not_reaped_yet_is_not_lost(adopted: Adopted) -> None:
    """On a busy machine, the parent may get no time for seconds; it writes the note before it reaps."""
    assert adopted.look(1.0) == []
    adopted.process = (START, "Z", WARDEN)
    assert adopted.look(30.0) == []
    Path("exits").write_text(f"{PID} {START} 0 1.0\n")
    assert adopted.look(0.0) == ["ended"]
    assert adopted.told[0]["status"] == 0


@from_table
def test_a_rank_without_a_note_is_lost_in_the_end(
    process: tuple[int, str, int] | None, seconds: float, adopted: Adopted
) -> None:
    assert adopted.look(0.0) == []
    adopted.process = process
    assert adopted.look(seconds) == ["lost"]
