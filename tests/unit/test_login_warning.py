"""A launch says what its node says of the login: that its end will be the end of the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.run import events as ev
from engine.supervisor.runner import Runner
from tests.played_run import hear, play_launch

HELLO = {
    "type": "hello",
    "pid": 7,
    "ranks": [],
    "store": None,
    "library": True,
    "folder": "/tmp/run",
    "state": "/home/alice",
}


def warned(runner: Runner) -> list[ev.NodeWarned]:
    return [event for event in runner._journal.events if isinstance(event, ev.NodeWarned) and event.check == "login"]


@pytest.mark.parametrize(("ends_with", "cure"), [("session", "KillUserProcesses"), ("user", "loginctl enable-linger")])
def test_a_launch_warns_of_a_login_that_would_end_its_ranks(tmp_path: Path, ends_with: str, cure: str) -> None:
    with play_launch(tmp_path, "gpu01:2") as runner:
        hear(runner, {**HELLO, "ends_with": ends_with})
        (warning,) = warned(runner)
        assert (warning.node, warning.fails) == ("gpu01", False)
        assert cure in warning.text
        hear(runner, {**HELLO, "ends_with": ends_with})
        assert len(warned(runner)) == 1


def test_a_launch_whose_ranks_outlive_the_login_says_nothing(tmp_path: Path) -> None:
    with play_launch(tmp_path, "gpu01:2") as runner:
        hear(runner, {**HELLO, "ends_with": ""})
        assert warned(runner) == []
