"""What ranks are at: their stacks by a signal, and what their process groups are at through a pipe."""

import os
from pathlib import Path

import pytest

from engine.node.agent.ranks import stacks
from tests.support import entries, is_alive, wait_until

ANSWERS = entries("agent/agent_stacks", "answers")
NO_FILES = entries("agent/agent_stacks", "no_files")
FLOOD = entries("agent/agent_stacks", "flood")
SILENT = "import time\nprint('up')\nwhile True: time.sleep(1)"


def test_collectives_are_asked_for_once_the_stacks_are_written(node):
    """faulthandler may crash where a thread runs while it writes."""
    bridge, _ = node.connect()
    node.spawn(bridge, ANSWERS, SILENT)
    wait_until(lambda: node.out(0) == node.out(1) == b"up\n")
    bridge.send(type="stacks", attempt=0)
    said = bridge.expect("stacks")
    assert said["ranks"] == [[0, "stacks", ""], [1, "", "it has no handler for the signal that asks for stacks"]]
    assert said["collectives"] == [[0, "told"]]
    bridge.send(type="stacks", attempt=0)
    assert bridge.expect("stacks")["collectives"] == [[0, "told"]]


def test_an_agent_without_ranks_answers_too(node):
    bridge, _ = node.connect()
    bridge.send(type="stacks", attempt=0)
    assert bridge.expect("stacks", ranks=[], collectives=[])


def test_pipes_in_the_place_of_a_rank_s_files_hold_nobody_up(node):
    bridge, _ = node.connect()
    node.spawn(bridge, NO_FILES)
    wait_until(lambda: node.out(0) == b"up\n")
    bridge.send(type="stacks", attempt=0)
    assert bridge.expect("stacks")["ranks"] == [[0, "", "it does not answer; it may be stopped"]]


def test_what_many_ranks_answer_fits_one_frame(node):
    bridge, _ = node.connect()
    node.spawn(bridge, *[FLOOD.replace("NUMBER", str(rank)) for rank in range(24)])
    wait_until(lambda: all(node.out(rank) == b"up\n" for rank in range(24)))
    bridge.send(type="stacks", attempt=0)
    ranks = bridge.expect("stacks")["ranks"]
    assert [(rank, set(text)) for rank, text, _ in ranks] == [(rank, {"\0"}) for rank in range(24)]


def test_nothing_is_written_into_a_file_in_the_place_of_the_pipe(node):
    bridge, _ = node.connect()
    node.spawn(bridge, SILENT, SILENT)
    wait_until(lambda: node.out(0) == node.out(1) == b"up\n")
    kept = node.folder / "kept"
    kept.write_text("kept")
    (node.folder / "attempt_0/rank_0.asked").symlink_to(kept)
    (node.folder / "attempt_0/rank_1.asked").write_text("kept")
    bridge.send(type="stacks", attempt=0)
    assert bridge.expect("stacks")["collectives"] == []
    assert kept.read_text() == (node.folder / "attempt_0/rank_1.asked").read_text() == "kept"


PARENT = entries("agent/agent_stacks", "parent")


def test_processes_below_a_rank_answer_one_after_the_other_and_a_stopped_one_is_not_asked(node):
    bridge, _ = node.connect()
    node.spawn(bridge, PARENT)
    wait_until(lambda: node.out(0).endswith(b"\n"))
    children = node.out(0).split()[:2]

    def have_answered() -> bool:
        bridge.send(type="stacks", attempt=0)
        said = bridge.expect("stacks")
        assert [entry[0] for entry in said["ranks"]] == [0]
        return bool(said["children"] == [[0, int(pid), f"{int(pid)} "] for pid in children])

    wait_until(have_answered, what="both answer, on a busy machine after some questions")


BECOMES_ANOTHER = entries("agent/agent_stacks", "becomes_another")


def test_a_process_below_a_rank_that_has_become_another_program_is_not_ended_by_the_question(node):
    bridge, _ = node.connect()
    node.spawn(bridge, BECOMES_ANOTHER)
    wait_until(lambda: node.out(0).endswith(b"\n"))
    (_, other) = map(int, node.out(0).split())
    bridge.send(type="stacks", attempt=0)
    bridge.expect("stacks")
    wait_until(lambda: Path(f"/proc/{other}/comm").read_text() == "sleep\n", what="it is another program")
    assert is_alive(other)


def test_a_rank_that_waits_for_a_disk_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stacks, "process_status", lambda pid: (1, "D", 1))
    assert stacks._why_silent(os.getpid()).startswith("it waits for a disk or a file server (state D)")
