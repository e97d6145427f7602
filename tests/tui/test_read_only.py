"""An app that only watches: no key changes anything, and the engine behind it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.client.engine import ReadOnlyEngine
from engine.core.errors import UsageError
from engine.core.views.view import RunNote
from tests.ended_run import ended_run
from tests.tui.fake_engine import FakeEngine, entry, profile
from tests.tui.seen import after, showing, text_of
from tui.app import RankdeckApp
from tui.screens.home import HomeScreen


async def test_keys_that_change_something_are_not_offered_and_do_nothing(tmp_path: Path):
    engine = FakeEngine(tmp_path)
    engine.add_run("gpt-aaaa")
    app = RankdeckApp(engine, read_only=True, open_profile="quickstart")
    async with showing(app, "Plan: quickstart", "H history", size=(120, 30)) as pilot:
        assert "enter launch" not in text_of(app)
        await after(pilot, "n", "opened with --read-only")
        await pilot.press("enter", "e", "d")
        assert isinstance(app.screen, HomeScreen)
        await after(pilot, "h enter", "q detach")
        await pilot.press("s", "x", "r")
        assert not app.screen.is_modal
    assert engine.launched == []
    assert engine.live["gpt-aaaa"].asked == []


async def test_the_engine_refuses_what_the_keys_do_not_offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    ended_run(tmp_path / "runs")
    engine = ReadOnlyEngine()
    refused: list[tuple[Callable[..., object], tuple[object, ...]]] = [
        (engine.save_profile, (profile("job"),)),
        (engine.trust, (entry(profile("job"), tmp_path),)),
        (engine.keep_settings, ({("theme",): "rankdeck-light"},)),
        (engine.write_note, ("smoke-sq4f", RunNote())),
        (engine.remove_run, ("smoke-sq4f",)),
    ]
    for act, arguments in refused:
        with pytest.raises(UsageError):
            act(*arguments)
    with pytest.raises(UsageError):
        await engine.launch(profile("job"))
    run = await engine.attach("smoke-sq4f")
    for request in (run.stop(), run.restart(), run.kill(0, 9)):
        with pytest.raises(UsageError):
            await request
    assert [one.summary.run for one in engine.history()] == ["smoke-sq4f"]
