"""Fixtures of the app's tests."""

from __future__ import annotations

import pytest
from textual.app import App
from textual.pilot import Pilot

from tests.support import PATIENCE


@pytest.fixture(autouse=True)
def lasting_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices stay until they are replaced: on a busy machine one could be gone before a test looks."""
    monkeypatch.setattr(App, "NOTIFICATION_TIMEOUT", PATIENCE)


@pytest.fixture(autouse=True)
def patient_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot gives an app half a minute to handle its messages, which is too little on a busy machine."""
    monkeypatch.setattr(Pilot._wait_for_screen, "__defaults__", (PATIENCE,))
