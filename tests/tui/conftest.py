"""Fixtures of the app's tests."""

from __future__ import annotations

import pytest
from textual.app import App

from tests.support import PATIENCE


@pytest.fixture(autouse=True)
def lasting_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices stay until they are replaced: on a busy machine one could be gone before a test looks."""
    monkeypatch.setattr(App, "NOTIFICATION_TIMEOUT", PATIENCE)
