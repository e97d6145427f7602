"""A signal stops a process of ours, which nothing continues: another one takes its place."""

import contextlib
import os
import selectors
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from engine.node.agent import link
from engine.node.agent.wire import MISSED_BEATS
from tests.agent.driver import FOR_EVER, command_of
from tests.support import PATIENCE, kill_hard, parent_of, process_state, wait_gone, wait_until

pytestmark = pytest.mark.slow


def stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def pid_of_store(node) -> int:
    return wait_until(lambda: next((one for one in children(node) if b"sleep" in command_of(one)), 0), what="a store")


def children(node) -> list[int]:
    (agent,) = node.agents
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and parent_of(int(name)) == agent]


def test_store_and_warden_that_are_stopped_are_ended_and_the_rank_goes_on(node):
    bridge, hello = node.connect()
    (rank,) = node.spawn(bridge, FOR_EVER)
    node.open_store(bridge)
    bridge.expect("store")
    store = pid_of_store(node)
    stop(store, hello["warden"])
    bridge.expect("store_lost")
    wait_gone(store, hello["warden"])
    _, after = node.connect()
    assert (after["pid"], after["ranks"][0]["pid"], after["ranks"][0]["status"]) == (hello["pid"], rank, None)


def test_an_agent_that_is_stopped_is_replaced_and_its_ranks_are_adopted(node):
    bridge, hello = node.connect()
    (rank,) = node.spawn(bridge, FOR_EVER)
    stop(hello["pid"])
    bridge.wait_ended()
    _, after = node.connect()
    assert after["pid"] != hello["pid"]
    assert after["warden"] == hello["warden"]
    assert (after["ranks"][0]["pid"], after["ranks"][0]["status"]) == (rank, None)


def test_agent_and_warden_that_are_stopped_are_replaced_when_a_bridge_gets_no_answer(node):
    bridge, hello = node.connect()
    (rank,) = node.spawn(bridge, FOR_EVER)
    stop(hello["warden"], hello["pid"])
    bridge.hang_up()
    again = node.boot()

    def has_ended_although_it_is_used() -> bool:
        with contextlib.suppress(BrokenPipeError):
            again.send(type="ping")
        again.read(1.0)
        return bool(again.ended)

    wait_until(has_ended_although_it_is_used, what="the bridge has given up")
    wait_gone(hello["warden"], hello["pid"])
    _, after = node.connect()
    assert (after["ranks"][0]["pid"], after["ranks"][0]["status"]) == (rank, None)
    assert after["warden"] != hello["warden"]


def test_a_stopped_bridge_is_ended_when_another_one_takes_its_place(node):
    """Its supervisor may have been killed."""
    bridge, hello = node.connect()
    stop(bridge.process.pid)
    wait_until(lambda: process_state(bridge.process.pid) == "T", what="it is stopped")
    _, after = node.connect()
    assert after["pid"] == hello["pid"]
    assert bridge.process.wait(timeout=PATIENCE) == -signal.SIGKILL


def test_a_stopped_bridge_is_ended_when_its_agent_was_killed_and_another_bridge_takes_its_place(node):
    bridge, hello = node.connect()
    node.spawn(bridge, FOR_EVER)
    stop(bridge.process.pid)
    kill_hard(hello["pid"])
    _, after = node.connect()
    assert after["pid"] != hello["pid"]
    bridge.wait_ended()


def test_an_agent_that_continues_after_a_while_is_left_alone(node):
    bridge, hello = node.connect()
    stop(hello["pid"])
    wait_until(lambda: process_state(hello["pid"]) == "T", what="it is stopped")
    os.kill(hello["pid"], signal.SIGCONT)
    bridge.settle()
    _, after = node.connect()
    assert after["pid"] == hello["pid"]


def test_a_pause_of_the_agent_in_the_middle_of_its_round_is_no_silence_of_its_supervisor(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(link, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ours, theirs = socket.socketpair()
    with ours, theirs, selectors.DefaultSelector() as selector:
        state: Any = SimpleNamespace(terms={"heartbeat": 1.0}, bridge=(os.getpid(), 0))
        one = link.Link(state, selector, ours, print, print, print)
        one._wire = theirs
        selector.register(theirs, selectors.EVENT_READ)
        for seconds in (0.05, 1000.0, 0.05):  # in the second one, the job is suspended
            now[0] += seconds
            one.drop_if_silent()
            assert one.is_up
        began = now[0]
        while one.is_up:
            now[0] += 0.5
            one.drop_if_silent()
        assert now[0] - began == pytest.approx(MISSED_BEATS, abs=1)
