"""Fixtures of the app's tests."""

from pathlib import Path

import pytest
from textual.app import App
from textual.pilot import Pilot

from tests.support import PATIENCE
from tests.tui.fake_engine import RUN, FakeEngine, FakeRun
from tui.app import RankdeckApp


@pytest.fixture(autouse=True)
def lasting_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices stay until they are replaced: on a busy machine one could be gone before a test looks."""
    monkeypatch.setattr(App, "NOTIFICATION_TIMEOUT", PATIENCE)


@pytest.fixture(autouse=True)
def all_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apps take the terminal of the tests for one with all colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")


@pytest.fixture(autouse=True)
def patient_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot gives an app half a minute to handle its messages, which is too little on a busy machine."""
    monkeypatch.setattr(Pilot._wait_for_screen, "__defaults__", (PATIENCE,))


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    monkeypatch.chdir(tmp_path)  # where no Python files lie
    return FakeEngine(tmp_path)


@pytest.fixture
def run(engine: FakeEngine) -> FakeRun:
    return engine.add_run(RUN)


@pytest.fixture
def app(engine: FakeEngine, run: FakeRun) -> RankdeckApp:
    """It opens on the run."""
    return RankdeckApp(engine, open_run=RUN)
