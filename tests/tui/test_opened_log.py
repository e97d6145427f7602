"""`rankdeck diagnose --open`: the app shows the log of another job as a run that has ended."""

from pathlib import Path

import pytest

from engine.commands.opening import LogEngine, OpenedLog
from engine.core.errors import UsageError
from tests.tui.seen import showing, text_of
from tui.app import RankdeckApp

LOG = "".join(
    f"[rank{rank}]: \x1b[31mstep {step}/9 loss 1.{step}\x1b[0m\n" for step in range(8) for rank in range(3)
) + (
    "a line of the launcher\n"
    "[rank2]: Traceback (most recent call last):\n"
    '[rank2]:   File "/code/train.py", line 58, in <module>\n'
    "[rank2]: ValueError: bad shard 7\n"
    "[rank99999]: hello\n"
)


@pytest.fixture
def log(tmp_path: Path) -> OpenedLog:
    return OpenedLog("job.log", [("job.log", None, LOG)], tmp_path / "shown", 1e9)


def test_each_rank_has_its_lines_and_numbers_and_the_failed_one_is_the_cause(log: OpenedLog) -> None:
    shown = log.shown
    assert [(one.state, one.step, one.loss) for one in shown.ranks] == [("stopped", 7, 1.7)] * 2 + [("failed", 7, 1.7)]
    assert shown.run.failure is not None
    assert (shown.run.failure.rank, shown.run.failure.headline) == (2, "rank 2 raised ValueError")
    assert (shown.run.state, shown.run.step, shown.run.steps, shown.run.loss) == ("failed", 7, 9, 1.7)
    assert log.log_path(0, 0, "out").read_text() == "".join(f"step {step}/9 loss 1.{step}\n" for step in range(8))
    assert [line.text for line in shown.events if line.text] == ["a line of the launcher", "hello"]


def test_a_log_of_one_process_is_rank_0_and_may_be_without_a_failure(tmp_path: Path) -> None:
    shown = OpenedLog("x", [("x", None, "step 1 loss 2\n")], tmp_path / "shown", 1e9).shown
    assert [(rank.rank, rank.state, rank.loss) for rank in shown.ranks] == [(0, "stopped", 2.0)]
    assert (shown.run.state, shown.run.failure) == ("stopped", None)


async def test_the_app_shows_it_and_changes_nothing(log: OpenedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    app = RankdeckApp(LogEngine(log), open_run="job.log", read_only=True)
    async with showing(app, "rank 2 raised ValueError", "bad shard 7", "3 ranks", size=(140, 40)) as pilot:
        await pilot.press("r", "s", "x")
        assert "its log does not say how it ended" in text_of(app)
    with pytest.raises(UsageError):
        await log.stop()
    assert LogEngine(log).runs() == []
