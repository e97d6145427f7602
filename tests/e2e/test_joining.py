"""Who has joined the process group, and who has not, is told while ranks wait for each other."""

from pathlib import Path

import pytest

from tests.support import Deck, entries

MEET = entries("e2e/joining", "meet")


@pytest.mark.parametrize("warm", [True, False])
def test_a_rank_that_others_wait_for_is_named(rankdeck: Deck, write_profile, work: Path, warm: bool):
    run = rankdeck.launch(write_profile(MEET, ranks=3, launch={"warm": warm}))
    status = rankdeck.wait_status(run, lambda status: "2 of 3 wait" in status["doing"], what="two ranks wait")
    assert status["doing"] == "rank 2 has not joined yet; 2 of 3 wait"
    assert [rank["note"] for rank in status["ranks"]] == ["waits for all ranks to join"] * 2 + [""]
    (work / "go").touch()
    for rank in range(3):
        rankdeck.wait_log(run, rank, b"3\n")
    rankdeck.wait_status(run, lambda status: not (status["doing"] or any(rank["note"] for rank in status["ranks"])))
    rankdeck.ends(run, work / "finish")
