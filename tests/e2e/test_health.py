"""Ranks that hang and losses that are not finite, in real runs."""

from tests.support import entries, wait_until

STEPS = entries("e2e/health", "steps")


def test_a_rank_that_hangs_is_found_without_asking_and_a_loss_that_is_not_finite_ends_its_rank(
    rankdeck, write_script, work, launch
):
    sections = {"health": {"least": 1.0}, "launch": {"on_nan": "hold", "on_failure": "stop"}}
    run = launch(write_script("steps.py", STEPS), ranks=2, **sections)
    # A busy machine may delay the other rank too, for a moment.
    status = rankdeck.wait_status(
        run, lambda status: bool(status["stall"] and status["stall"]["doing"] and status["stall"]["ranks"] == [1])
    )
    assert any(line.startswith("rank 1: in load (steps.py:") for line in status["stall"]["doing"])
    assert [rank["health"] for rank in status["ranks"]] == ["", "stalled"]
    (work / "go").touch()
    rankdeck.wait_status(run, lambda status: status["stall"] is None)
    (work / "odd").touch()
    status = rankdeck.wait_state(run, "holding")
    assert "rank 0 was ended because its loss was not finite" in status["failure"]["headline"]
    assert [rank["state"] for rank in status["ranks"]] == ["failed", "running"]

    def kinds() -> set[str]:
        return {event["kind"] for event in rankdeck.journal(run) if event["event"] == "HealthNoticed"}

    wait_until(lambda: {"stalled", "moving", "nan"} <= kinds(), what="the events")


def test_a_rank_that_raised_and_waits_for_a_thread_is_shown_while_it_stays(rankdeck, write_script, launch):
    run = launch(write_script("stays.py", entries("e2e/health", "stays")), ranks=2)
    status = rankdeck.wait_status(run, lambda status: bool(status["stall"] and status["stall"]["waits"]))
    assert status["stall"]["waits"][0] == (
        "rank 1 raised ValueError: bad shard 7 (stays.py:6), and its process has not ended: it waits for the thread prefetch"
    )
    assert [rank["state"] for rank in status["ranks"]] == ["running", "running"]
