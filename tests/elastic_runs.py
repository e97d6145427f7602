"""An elastic training that any rank may leave, and what the tests of it ask of its run.

Where there is a file `hold`, the training waits before its last step: it must not end before a test has done all that it wants.
"""

from pathlib import Path
from typing import Any

from tests.support import Deck, entries

TRAIN = entries("elastic_runs", "train")


def reached(deck: Deck, run: str, step: int) -> Any:
    """Waits until every rank has finished a step, and is well. Returns the status."""
    well = ("running", "exited")
    return deck.wait_status(
        run, lambda status: all((rank["step"] or 0) >= step and rank["state"] in well for rank in status["ranks"])
    )


def pids(status: Any) -> list[int]:
    return [rank["pid"] for rank in status["ranks"]]


def replaced(deck: Deck, run: str, victims: list[int]) -> list[int]:
    """The ranks that have another process than at first: those that were killed, and those that said that they are stuck.

    A survivor that gloo does not let out of its collective makes way after some seconds; its successor gets its state.
    """
    stuck = {
        event["rank"]
        for event in deck.journal(run)
        if event["event"] == "RankEnded"
        and b"is stuck in a collective; a new process takes its place" in deck.log(run, event["rank"], "err")
    }
    return sorted({*victims, *stuck})


def assert_kept(deck: Deck, run: str, before: list[int], after: Any, *ranks: int) -> None:
    """These ranks have the process that they had, unless they made way."""
    others = replaced(deck, run, [])
    lost = [rank for rank in ranks if pids(after)[rank] != before[rank] and rank not in others]
    assert not lost, "\n".join([f"ranks {lost} have another process; the journal:", *map(str, deck.journal(run))])


def wait_for_another(deck: Deck, run: str, rank: int, pid: int) -> int:
    """Waits until a rank has another process than this one. Returns it."""
    return pids(deck.wait_status(run, lambda status: pids(status)[rank] not in (pid, None)))[rank]


def result(deck: Deck, run: str, ranks: int = 4, attempt: int = 0) -> str:
    """What every rank said at its end, which is no longer held."""
    Path("hold").unlink(missing_ok=True)
    assert deck("wait", run, seconds=100).returncode == 0, deck("logs", run).stderr
    said = {
        line
        for rank in range(ranks)
        for line in deck.log(run, rank, attempt=attempt).decode().splitlines()
        if "returned" in line
    }
    assert len(said) == 1, said
    return said.pop()
