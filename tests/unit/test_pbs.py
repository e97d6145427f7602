"""Tasks of a PBS job: their command line, the proof between their two ends, and why there is none."""

from __future__ import annotations

import re
import socket
import sys
import threading

import pytest

from engine.core.errors import ProfileError
from engine.core.failures.causes import pbs as causes
from engine.core.failures.ssh import explain
from engine.core.plan.plan import PlannedNode, Reach
from engine.launchers import LAUNCHERS, pbs, rsync
from engine.launchers.setup import with_setup
from engine.node import pbs_task
from tests.support import parse_profile

SAID = [
    (255, "pbs_tmrsh: No such file or directory\n", "there is no pbs_tmrsh on this machine"),
    (255, "pbs_tmrsh: not executing under PBS\n", "rankdeck does not run in a PBS job here"),
    (255, 'pbs_tmrsh: host "gpu01" is not a node in job <7.head>\n', "it is not a node of this PBS job"),
    (255, "pbs_tmrsh: gpu01 has not connected within 60 s\n", "its task has not connected within 60 s; rankdeck, its"),
    (
        255,
        'pbs_tmrsh: tm_poll(spawn): host "gpu01" err TM_SUCCESS 17002\n',
        "PBS starts no task there: TM_SUCCESS 17002; the state of the node: pbsnodes gpu01",
    ),
    (255, "pbs_tmrsh: tm_init: TM_ESYSTEM\n", "PBS starts no task there: TM_ESYSTEM"),
    (255, "odd\n", "pbs_tmrsh failed: odd; try it by hand: pbs_tmrsh gpu01 true"),
    (127, "python9: No such file or directory\n", "there is no python9 there"),
]
"""Exit status and output of our program around pbs_tmrsh, from the source of OpenPBS, and what is told of them."""


def test_a_command_is_a_task_that_our_program_starts() -> None:
    argv = LAUNCHERS["pbs"].argv("gpu01", ["python3", "-c", "a b"], Reach())
    assert argv == [sys.executable, "-I", "-S", str(pbs.PROGRAM), "gpu01", "python3", "-c", "a b"]
    assert pbs.PROGRAM.is_file()
    assert pbs.argv("gpu01", ["python3"], Reach(setup="a"))[5:] == with_setup("a", ["python3"])
    with pytest.raises(ValueError, match="not a valid node name"):
        pbs.argv("-l", ["true"], Reach())


def test_rsync_reaches_a_node_by_a_task_too() -> None:
    argv = rsync.argv(PlannedNode(name="gpu01", transport="pbs", ranks=(0,)), "/data", Reach())
    assert argv[argv.index("--rsh") + 1].endswith(f"'{pbs.PROGRAM}'")
    assert argv[-2:] == ["/data/", "gpu01:/data/"]


@pytest.mark.parametrize(("status", "said", "words"), SAID)
def test_why_there_is_no_task_is_told(status: int, said: str, words: str) -> None:
    trouble = explain("gpu01", status=status, said=said, python="python9", setup=False, transport="pbs")
    assert words in trouble.text


def test_every_cause_is_shown() -> None:
    for cause in causes.CAUSES:
        assert any(re.search(cause.pattern, said, re.MULTILINE) for _, said, _ in SAID), cause.id


def test_tasks_need_a_job() -> None:
    text = 'schema = 1\nname = "a"\n[layout]\ntransport = "pbs"\n[recipe]\nscript = "a.py"\n'
    with pytest.raises(ProfileError, match="is pbs, and the profile names no job"):
        parse_profile(text, file="a.toml")


KEY = b"k" * pbs_task.SIZE


# --- the proof -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_right", [True, False])
def test_only_who_has_the_key_is_accepted_and_learns_that_the_other_has_it(is_right: bool) -> None:
    head, node = socket.socketpair()
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(pbs_task.accepts(head, KEY)))
    thread.start()
    with head, node:
        if is_right:
            pbs_task.prove(node, KEY)
        else:
            with pytest.raises(ConnectionError):
                pbs_task.prove(node, b"x" * 32)
        thread.join()
    assert done == [is_right]


def test_a_listener_that_sends_back_what_it_gets_is_refused() -> None:
    head, node = socket.socketpair()

    def send_back() -> None:
        head.sendall(b"n" * 32)
        pbs_task.receive(head)
        head.sendall(pbs_task.receive(head))

    thread = threading.Thread(target=send_back)
    thread.start()
    with head, node:
        with pytest.raises(ConnectionError, match="it does not have the key"):
            pbs_task.prove(node, KEY)
        thread.join()


def test_who_says_nothing_does_not_keep_others_waiting() -> None:
    class Task:
        def poll(self) -> None:
            return None

    with pbs_task.listener() as server:
        address = ("127.0.0.1", server.getsockname()[1])
        with socket.create_connection(address), socket.create_connection(address) as link:
            thread = threading.Thread(target=pbs_task.prove, args=(link, KEY))
            thread.start()
            found = pbs_task.wait_for(server, Task(), KEY)  # type: ignore[arg-type]
            thread.join()
            assert found is not None
            found.close()
