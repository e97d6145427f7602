"""An app that only watches: no key changes anything, and the engine behind it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.client.engine import ReadOnlyEngine
from engine.core.errors import UsageError
from engine.core.views.view import RunNote
from tests.ended_run import ended_run
from tests.tui.fake_engine import entry, profile


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
