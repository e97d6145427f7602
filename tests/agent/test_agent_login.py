"""An agent leaves a session with which systemd would end it: its program sees faked files of systemd."""

import zlib
from pathlib import Path

import pytest

from engine.node import login
from engine.supervisor.nodes import bridge
from tests.agent import driver
from tests.agent.driver import Node
from tests.support import FakeBusctl, fake_systemd


@pytest.fixture
def busctl(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBusctl:
    """The user's manager of the node on which agents start."""
    root, fake = fake_systemd(tmp_path, monkeypatch)
    there = f'root: str = "{root}"'.encode()
    program = zlib.decompress(bridge.agent_program()).replace(b'root: str = "/"', there)
    assert there in program
    for module in (bridge, driver):
        monkeypatch.setattr(module, "agent_program", lambda: zlib.compress(program))
    return fake


def test_an_agent_leaves_the_session_of_its_login_before_it_starts_anything(busctl: FakeBusctl, node: Node) -> None:
    _, hello = node.connect()
    (argv,) = busctl.calls()
    assert argv[argv.index("PIDs") :][:4] == ["PIDs", "au", "1", str(hello["warden"])]
    assert hello["ends_with"] != "session"
    node.connect()
    assert len(busctl.calls()) == 1


def test_an_agent_whose_manager_refuses_starts_in_its_session(busctl: FakeBusctl, node: Node) -> None:
    busctl.end_with("exit 1")
    _, hello = node.connect()
    assert hello["ends_with"] == "session"
    assert len(busctl.calls()) == 1


@pytest.mark.parametrize("place", ["of the run", "of the node"])
def test_an_agent_of_a_job_stays(busctl: FakeBusctl, node: Node, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "of the node":
        monkeypatch.setenv(login.JOBS[0], "7")
    bridge = node.boot({**node.hello(), "in_job": place == "of the run"})
    hello = bridge.expect("hello")
    node.agents.add(hello["pid"])
    node.wardens.add(hello["warden"])
    assert hello["ends_with"] == "session"
    assert busctl.calls() == []
