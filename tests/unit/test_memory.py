"""Commands that start nothing have a limit of memory."""

import resource
import sys

import pytest

from engine.commands import cli


@pytest.mark.parametrize(
    ("command", "is_limited"), [("ps", True), ("logs", True), ("launch", False), ("--help", False)]
)
def test_commands_that_start_nothing_take_no_more_memory_than_they_can_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, is_limited: bool
):
    limits: list[tuple[int, tuple[int, int]]] = []

    def take(**_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(resource, "setrlimit", lambda *limit: limits.append(limit))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr(cli.cli, "main", take)
    monkeypatch.setattr(sys, "argv", ["rankdeck", command])
    assert cli.main() == 1
    assert limits == ([(resource.RLIMIT_DATA, (cli.MOST_MEMORY, resource.RLIM_INFINITY))] if is_limited else [])
    assert "too little memory" in capsys.readouterr().err
