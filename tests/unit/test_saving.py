"""What counts as saving after a rank was told to stop."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.node.agent.ranks.saving import GROWTH_TIME, HANDLER_TIME, Saving
from engine.node.agent.state import Rank
from tests.support import from_table


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    """This process as a rank, with files in the current folder."""
    monkeypatch.chdir(tmp_path)
    rank = Rank(0, ["out", "err", "metrics"])
    rank.pid = os.getpid()
    Path("out").write_text("saving checkpoint of step 10\n")
    yield rank
    rank.close()


@from_table
def test_what_a_rank_says_after_the_signal(stream: str, text: str, goes_on: bool, rank: Rank) -> None:
    watch = Saving([rank], lambda paths: None)
    assert watch.goes_on([rank]) == [], "words from before the signal do not count"
    with open(stream, "a") as file:
        file.write(text)
    assert bool(watch.goes_on([rank])) is goes_on


@from_table
def test_an_open_file_that_grows(name: str, counts: bool, rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("engine.node.agent.ranks.saving.monotonic", lambda: now)
    watch = Saving([rank], lambda paths: None)
    Path(name).parent.mkdir(exist_ok=True)
    with open(name, "wb", buffering=0) as file:
        file.write(b"x")
        assert bool(watch.goes_on([rank])) is counts
        now += GROWTH_TIME + 1
        assert watch.goes_on([rank]) == []
        file.write(b"x")
        assert bool(watch.goes_on([rank])) is counts


def test_a_file_that_is_open_for_reading_is_no_save(rank: Rank) -> None:
    Path("shard_1.tar").write_bytes(b"x")
    with open("shard_1.tar", "rb"):
        assert Saving([rank], lambda paths: None).goes_on([rank]) == []


def test_a_rank_that_starts_after_the_signal_is_looked_at_too(rank: Rank) -> None:
    assert Saving([], lambda paths: None).goes_on([rank]) == [rank]


def test_a_program_that_handles_sigterm_has_time_to_begin(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("engine.node.agent.ranks.saving.monotonic", lambda: now)
    watch, rank.handles_stop = Saving([rank], lambda paths: None), True
    assert watch.goes_on([rank]) == [rank]
    now += HANDLER_TIME
    assert watch.goes_on([rank]) == []
