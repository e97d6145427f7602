"""A launch on one node says what will end its ranks or slow them down: the end of a login, and limits."""

from pathlib import Path

import pytest

from engine.core.run import events as ev
from engine.supervisor.nodes import reports
from engine.supervisor.runner import Runner
from tests.played_run import hear, play_launch
from tests.support import entries, from_table

HELLO = entries("unit/launch_warnings", "hello")


def warned(runner: Runner, check: str = "login") -> list[ev.NodeWarned]:
    return [event for event in runner._journal.events if isinstance(event, ev.NodeWarned) and event.check == check]


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


@from_table
def test_a_launch_on_this_machine_warns_of_its_limits(
    name: str, value: object, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, name, lambda: value)
    with play_launch(tmp_path, "localhost:2") as runner:
        hear(runner, HELLO, "localhost")
        (warning,) = warned(runner, "limits")
        assert told in warning.text
    (tmp_path / "elsewhere").mkdir()
    with play_launch(tmp_path / "elsewhere", "gpu01:2") as runner:
        hear(runner, HELLO)
        assert warned(runner, "limits") == []
