"""The one launch of `make quick`: the shipped profile `smoke`, from the command to the last number."""

import pytest

from tests.support import wait_until


@pytest.mark.quick
def test_the_shipped_profile_smoke_trains_and_succeeds(rankdeck):
    done = rankdeck("launch", "smoke")
    assert done.returncode == 0, done.stderr
    status = rankdeck.status()
    assert status["state"] == "succeeded"
    assert [rank["exit"] for rank in status["ranks"]] == [0] * len(status["ranks"])
    assert all(rank["step"] for rank in status["ranks"])
    assert status["loss"] is None or status["loss"] > 0
    folder = rankdeck.folder(status["run"])
    wait_until(lambda: rankdeck.processes() == [])
    assert sum(path.is_file() for path in folder.rglob("*")) <= 20, "what only a live run needs is gone"
