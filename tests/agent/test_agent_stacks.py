"""What ranks are at: their stacks by a signal, and what their process groups are at through a pipe."""

from __future__ import annotations

from pathlib import Path

from tests.support import is_alive, wait_until

ANSWERS = """
import os, signal, time
stem = "attempt_0/rank_0."
os.mkfifo(stem + "asked")
pipe = os.open(stem + "asked", os.O_RDWR | os.O_NONBLOCK)
def is_asked():
    try:
        return bool(os.read(pipe, 64))
    except BlockingIOError:
        return False
def write(kind, text):
    with open(stem + kind, "a") as file:
        file.write(text)
def write_stacks(*_):
    time.sleep(0.2)  # long enough to be asked too early
    write("stacks", "asked too early" if is_asked() else "stacks")
signal.signal(signal.SIGRTMIN + 9, write_stacks)
print("up")
while True:
    if is_asked():
        write("collectives", "told")
    time.sleep(0.01)
"""
NO_FILES = """
import os, signal, time
for kind in "stacks", "collectives", "asked":
    os.mkfifo(f"attempt_0/rank_0.{kind}")
signal.signal(signal.SIGRTMIN + 9, lambda *_: None)
print("up")
while True:
    time.sleep(0.01)
"""
FLOOD = """
import os, signal, time
def write(*_):
    with open("attempt_0/rank_NUMBER.stacks", "wb") as file:
        file.write(bytes(1 << 20))
signal.signal(signal.SIGRTMIN + 9, write)
print("up")
while True:
    time.sleep(0.2)
"""
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


PARENT = """
import os, signal, time
def write(*_):
    with open("attempt_0/rank_0.stacks", "a") as file:
        file.write(f"{os.getpid()} ")
signal.signal(signal.SIGRTMIN + 9, write)
children = []
for number in range(3):
    if not (pid := os.fork()):
        while True:
            time.sleep(0.01)
    children.append(pid)
os.kill(children[2], signal.SIGSTOP)
print(*children)
while True:
    time.sleep(0.01)
"""


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


BECOMES_ANOTHER = """
import os, signal, time
def write(*_):
    with open("attempt_0/rank_0.stacks", "a") as file:
        file.write("rank")
def is_asked(*_):
    open("asked", "w").close()
signal.signal(signal.SIGRTMIN + 9, write)
children = []
for number in range(2):
    if not (pid := os.fork()):
        if number == 0:
            signal.signal(signal.SIGRTMIN + 9, is_asked)  # the next one is asked half a second later
        while True:
            if number == 1 and os.path.exists("asked"):
                os.execlp("sleep", "sleep", "600")
            time.sleep(0.001)
    children.append(pid)
print(*children)
while True:
    time.sleep(0.01)
"""


def test_a_process_below_a_rank_that_has_become_another_program_is_not_ended_by_the_question(node):
    bridge, _ = node.connect()
    node.spawn(bridge, BECOMES_ANOTHER)
    wait_until(lambda: node.out(0).endswith(b"\n"))
    (_, other) = map(int, node.out(0).split())
    bridge.send(type="stacks", attempt=0)
    bridge.expect("stacks")
    wait_until(lambda: Path(f"/proc/{other}/comm").read_text() == "sleep\n", what="it is another program")
    assert is_alive(other)
