"""The real agent, driven over its wire as a supervisor drives it. Ranks are one-line programs without torch."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.launchers.local import boot_argv
from engine.node import agent
from engine.supervisor.link import Link
from tests.agent.driver import SOURCE, Node
from tests.support import ROOT, is_alive, kill_hard, parent_of, process_state, processes_with, wait_gone, wait_until

FOR_EVER = "import signal; print('up'); signal.pause()"
STUBBORN = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; print('up'); [signal.pause() for _ in iter(int, 1)]"


@pytest.fixture
def node(home: Path, work: Path) -> Iterator[Node]:
    node = Node(work)
    yield node
    node.leave()


def child_program(body: str, *, then: str) -> str:
    """A rank that forks a child with this body, waits until it has said so, and goes on with `then`."""
    return (
        "import os, signal, sys\n"
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n"
        f"    {body}\n"
        "    print('child', os.getpid())\n"
        "    os.write(w, b'x')\n"
        "    while True: signal.pause()\n"
        "os.read(r, 1)\n"
        f"{then}"
    )


def child_of(node: Node, rank: int = 0) -> int:
    """The pid that a `child_program` printed."""
    lines = wait_until(lambda: [line for line in node.out(rank).splitlines() if line.startswith(b"child")])
    return int(lines[0].split()[1])


def listens(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def sockets() -> list[str]:
    return sorted(os.listdir(Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck"))


# --- what it is made of


def test_the_agent_is_small_enough_to_send_at_every_boot():
    assert len(SOURCE) < 40 * 1024


def test_the_agent_compiles_as_python_3_8():
    ast.parse(SOURCE, feature_version=(3, 8))


def test_the_agent_imports_the_standard_library_only():
    tree = ast.parse(SOURCE)
    names = {alias.name for found in ast.walk(tree) if isinstance(found, ast.Import) for alias in found.names}
    names |= {found.module or "" for found in ast.walk(tree) if isinstance(found, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | {"__future__"}


# --- booting


async def test_it_boots_past_what_a_login_shell_prints_first(node):
    """A `.bashrc` that greets, and part of what the agent itself would say, must not look like frames."""
    noise = "echo 'Welcome to gpu01!'; printf '\\0RANKDECK-AGENT'; head -c 20000 /dev/zero; echo; exec \"$@\""
    argv = ["sh", "-c", noise, "sh", *boot_argv("localhost", sys.executable, agent.BOOT, len(SOURCE))]
    greeted, closed = asyncio.Event(), asyncio.Event()
    failed: list[str] = []
    async with asyncio.timeout(15), asyncio.TaskGroup() as tasks:
        link = Link(
            tasks,
            "localhost",
            argv,
            node.hello(),
            on_message=lambda message: greeted.set() if message["type"] == "hello" else None,
            on_down=failed.append,
            on_failed=failed.append,
            on_closed=closed.set,
            patience=5.0,
        )
        link.open()
        await greeted.wait()
        link.close()
        await closed.wait()
    assert failed == []


def test_the_wire_carries_nothing_before_the_sync_string(node):
    _bridge, hello = node.connect()
    assert hello["ranks"] == []
    assert hello["store"] is None
    assert hello["python"] == "{}.{}.{}".format(*sys.version_info[:3])


def test_another_protocol_is_refused(node):
    bridge = node.boot({**node.hello(), "protocol": agent.PROTOCOL + 1})
    refused = bridge.expect("refused")
    assert str(agent.PROTOCOL + 1) in refused["reason"]
    node.connect()


def test_a_wire_that_ends_in_the_middle_of_the_source_ends_the_boot():
    argv = boot_argv("localhost", sys.executable, agent.BOOT, len(SOURCE))
    done = subprocess.run(argv, input=SOURCE[:1000], capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (agent.EXIT_CUT_OFF, b"")


def test_a_wire_that_ends_before_the_first_frame_starts_no_agent(home):
    argv = boot_argv("localhost", sys.executable, agent.BOOT, len(SOURCE))
    done = subprocess.run(argv, input=SOURCE + b"\0\0", capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (agent.EXIT_CUT_OFF, agent.SYNC)


def test_the_agent_has_left_the_session_the_folder_and_the_wire_of_its_boot(node):
    bridge, hello = node.connect()
    for pid in (hello["pid"], hello["warden"]):
        assert os.getsid(pid) == hello["warden"] != os.getsid(0)
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        names = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        assert not [name for name in names if name.startswith(("/dev/pts", "/dev/tty"))]
        assert bridge.process.stdout is not None
        assert os.readlink(f"/proc/self/fd/{bridge.process.stdout.fileno()}") not in names


def test_a_module_on_pythonpath_does_not_stop_the_agent(node, tmp_path):
    """It is for ranks, and a training repository may well have a `socket.py` or `json.py` on it."""
    for name in ("socket", "json", "selectors", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    bridge = node.boot(env={"PYTHONPATH": str(tmp_path)})
    hello = bridge.expect("hello")
    node.agents.add(hello["pid"])
    node.spawn(bridge, "print(os.environ['PYTHONPATH'].split(':')[1:])")
    bridge.expect("ended", status=0)
    assert node.out(0) == f"{[str(tmp_path)]}\n".encode()


# --- ranks


def test_a_rank_tells_when_it_started_and_how_it_ended(node):
    bridge, _ = node.connect()
    pids = node.spawn(bridge, "print('hello')", "raise SystemExit(7)", "os.kill(os.getpid(), 11)")
    assert len(set(pids)) == 3
    assert [bridge.expect("ended", rank=rank, attempt=0)["status"] for rank in range(3)] == [0, 7, -11]
    assert node.out(0) == b"hello\n"


def test_a_rank_leads_a_session_of_its_own_and_has_no_input(node):
    bridge, _ = node.connect()
    (_pid,) = node.spawn(
        bridge, "import sys; print(os.getpid() == os.getsid(0) == os.getpgid(0), repr(sys.stdin.read()))"
    )
    bridge.expect("ended", status=0)
    assert node.out(0) == b"True ''\n"


def test_a_rank_inherits_no_descriptor_of_the_agent(node):
    bridge, _ = node.connect()
    node.open_store(bridge)
    bridge.expect("store")
    node.spawn(bridge, "print(sorted(n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)))")
    bridge.expect("ended", status=0)
    assert node.out(0) == b"['0', '1', '2']\n"


def test_ranks_have_the_signal_handling_of_a_fresh_process(node):
    """Python ignores SIGPIPE; a rank that inherits that, or a blocked signal, behaves unlike the same script in a shell."""
    bridge, _ = node.connect()
    node.spawn(bridge, "print(*[l for l in open('/proc/self/status') if l[:6] in ('SigBlk', 'SigIgn')])")
    bridge.expect("ended", status=0)
    own = subprocess.run(
        [sys.executable, "-c", "print(*[l for l in open('/proc/self/status') if l[:6] in ('SigBlk', 'SigIgn')])"],
        capture_output=True,
        timeout=20,
        check=True,
    )
    assert node.out(0) == own.stdout


def test_a_command_that_does_not_exist_ends_with_127_and_a_reason(node):
    bridge, _ = node.connect()
    node.spawn(bridge, "", argv=["/no/such/python", "x.py"])
    ended = bridge.expect("ended", rank=0)
    assert ended["status"] == 127
    assert "/no/such/python" in ended["reason"]


def test_a_command_that_may_not_be_run_ends_with_126(node):
    bridge, _ = node.connect()
    (node.folder / "plain.txt").write_text("x")
    node.spawn(bridge, "", argv=[str(node.folder / "plain.txt")])
    assert bridge.expect("ended", rank=0)["status"] == 126


def test_a_working_directory_that_is_missing_is_named(node):
    bridge, _ = node.connect()
    node.spawn(bridge, "", argv=[sys.executable, "-c", ""], cwd=str(node.folder / "gone"))
    ended = bridge.expect("ended", rank=0)
    assert ended["status"] == 127
    assert str(node.folder / "gone") in ended["reason"]


def test_files_hold_exactly_the_bytes_that_were_written(node):
    bridge, _ = node.connect()
    node.spawn(
        bridge,
        "import hashlib\n"
        "data = bytes(range(256)) * 4000 + b'\\r\\n\\r\\xff\\xfe' + b'x' * 1000000 + b'no newline'\n"
        "view = memoryview(data)\n"
        "while view: view = view[os.write(1, view[:7777]):]\n"
        "os.write(2, hashlib.sha256(data).hexdigest().encode())",
    )
    bridge.expect("ended", status=0)
    wanted = Path(node.files(0)["err"]).read_text()
    assert hashlib.sha256(node.out(0)).hexdigest() == wanted


def test_sizes_are_told_before_the_end(node):
    """Whoever reads files by the sizes that it was told has all of them when it hears of the end."""
    bridge, _ = node.connect()
    node.spawn(bridge, "os.write(1, b'x' * 1000); os.write(2, b'y' * 10)")
    bridge.expect("ended")
    seen = [message["sizes"] for message in bridge.messages if message["type"] == "grew"]
    assert seen[-1] == [[0, 1000, 10, 0]]


def test_a_rank_that_is_asked_for_twice_starts_once(node):
    bridge, _ = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    node.spawn(bridge, FOR_EVER, argv=[sys.executable, "-c", "print('twice')"])
    bridge.settle()
    assert not [message for message in bridge.messages if message["type"] == "spawned"]
    assert is_alive(pid)


def test_ranks_of_an_attempt_that_was_cleared_do_not_start(node):
    bridge, _ = node.connect()
    bridge.send(type="clear", attempt=3)
    bridge.expect("cleared", attempt=3, abandoned=[])
    node.spawn(bridge, "", attempt=3, argv=[sys.executable, "-c", "pass"])
    bridge.settle()
    assert not [message for message in bridge.messages if message["type"] in ("spawned", "ended")]


# --- groups


def test_the_group_of_a_rank_is_killed_when_its_leader_exits(node):
    bridge, _ = node.connect()
    node.spawn(bridge, child_program("[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]", then="sys.exit(3)"))
    assert bridge.expect("ended")["status"] == 3
    wait_gone(child_of(node), seconds=2)


ORDER = """
import os, sys, time
from engine.node import agent
seen = []
kill_group, reap = agent.kill_group, agent.reap
agent.kill_group = lambda pid, number: (seen.append(("kill", agent.process_mark(pid)[1])), kill_group(pid, number))
agent.reap = lambda pid: (seen.append(("reap", agent.process_mark(pid)[1])), reap(pid))[1]
pid = agent.start_process(["/bin/true"])
while agent.process_mark(pid)[1] != "Z": time.sleep(0.001)
"""
"""Writes down in which order the real functions are called, and whether the leader was still there."""


@pytest.mark.parametrize(
    "who",
    [
        "import socket\n"
        "one = agent.Agent(sys.argv[1], socket.socket(), os.getppid(), 'nobody')\n"
        "rank = one.ranks[0] = agent.Rank(0, [])\n"
        "rank.pid = pid\n"
        "one._reap()",
        "agent.note_exit(sys.argv[1], pid)",
    ],
    ids=["agent", "warden"],
)
def test_the_group_is_killed_before_its_leader_is_reaped(work, who):
    """Once the leader is reaped its number may be another process's, and a signal to the group hits the wrong one."""
    code = f"{ORDER}{who}\nprint(seen)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(work)], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stdout == "[('kill', 'Z'), ('reap', 'Z')]\n", done.stderr


def test_a_signal_reaches_the_whole_group_of_one_rank(node):
    bridge, _ = node.connect()
    _first, second = node.spawn(bridge, child_program("pass", then="signal.pause()"), FOR_EVER)
    child = child_of(node)
    bridge.send(type="signal", attempt=0, rank=0, signal=signal.SIGTERM)
    assert bridge.expect("ended", rank=0)["status"] == -signal.SIGTERM
    wait_gone(child, seconds=2)
    assert is_alive(second)


def test_a_signal_for_another_attempt_is_not_sent(node):
    bridge, _ = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER, attempt=1)
    bridge.send(type="signal", attempt=0, rank=0, signal=signal.SIGKILL)
    bridge.settle()
    assert is_alive(pid)


# --- the stop ladder


def test_the_stop_ladder_goes_on_to_harder_signals(node):
    ladder = [["SIGINT", 0.2], ["SIGTERM", 0.2], ["SIGKILL", 5]]
    bridge, _ = node.connect(stop_ladder=ladder)
    node.spawn(bridge, STUBBORN, FOR_EVER.replace("pause()", "signal(2, signal.SIG_IGN); signal.pause()"), FOR_EVER)
    wait_until(lambda: all(b"up" in node.out(rank) for rank in range(3)))
    bridge.send(type="stop", attempt=0, at_once=False)
    ends = {rank: bridge.expect("ended", rank=rank)["status"] for rank in range(3)}
    assert ends[0] == -signal.SIGKILL
    assert ends[2] in (-signal.SIGINT, 1)


def test_every_step_of_the_ladder_is_sent_in_its_order(node):
    ladder = [["SIGUSR1", 0.1], ["SIGUSR2", 0.1], ["SIGHUP", 0.1], ["SIGKILL", 5]]
    bridge, _ = node.connect(stop_ladder=ladder)
    node.spawn(
        bridge,
        "import signal\n"
        "[signal.signal(n, lambda n, f: os.write(1, signal.Signals(n).name.encode() + b' ')) for n in (1, 10, 12)]\n"
        "os.write(1, b'up ')\n"
        "while True: signal.pause()",
    )
    wait_until(lambda: b"up" in node.out(0))
    bridge.send(type="stop", attempt=0, at_once=False)
    assert bridge.expect("ended")["status"] == -signal.SIGKILL
    assert node.out(0).split() == [b"up", b"SIGUSR1", b"SIGUSR2", b"SIGHUP"]


def test_a_rank_that_is_stopped_by_a_signal_is_ended_too(node):
    bridge, _ = node.connect(stop_ladder=[["SIGTERM", 3], ["SIGKILL", 5]])
    (pid,) = node.spawn(bridge, FOR_EVER)
    wait_until(lambda: b"up" in node.out(0))
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: process_state(pid) == "T")
    bridge.send(type="stop", attempt=0, at_once=False)
    assert bridge.expect("ended", 2.5)["status"] == -signal.SIGTERM


def test_at_once_kills_without_waiting_for_the_ladder(node):
    bridge, _ = node.connect(stop_ladder=[["SIGINT", 600], ["SIGKILL", 5]])
    node.spawn(bridge, STUBBORN)
    wait_until(lambda: b"up" in node.out(0))
    bridge.send(type="stop", attempt=0, at_once=False)
    bridge.send(type="stop", attempt=0, at_once=True)
    assert bridge.expect("ended", 3)["status"] == -signal.SIGKILL


def test_a_second_stop_does_not_start_the_ladder_again(node):
    bridge, _ = node.connect(stop_ladder=[["SIGUSR1", 0.3], ["SIGKILL", 5]])
    node.spawn(
        bridge,
        "import signal\nsignal.signal(10, lambda n, f: os.write(1, b'usr1 '))\nos.write(1, b'up ')\nwhile True: signal.pause()",
    )
    wait_until(lambda: b"up" in node.out(0))
    for _ in range(3):
        bridge.send(type="stop", attempt=0, at_once=False)
    bridge.expect("ended")
    assert node.out(0).split() == [b"up", b"usr1"]


# --- links that break


def test_a_second_bridge_finds_the_same_agent_and_all_that_it_has(node):
    bridge, first = node.connect()
    pids = node.spawn(bridge, FOR_EVER, "raise SystemExit(5)")
    bridge.expect("ended", rank=1)
    node.open_store(bridge)
    port = bridge.expect("store")["port"]
    bridge.hang_up()
    _, second = node.connect()
    assert (second["pid"], second["warden"]) == (first["pid"], first["warden"])
    assert second["store"] == [0, port]
    assert second["ranks"] == [
        {"attempt": 0, "rank": 0, "pid": pids[0], "status": None, "reason": ""},
        {"attempt": 0, "rank": 1, "pid": pids[1], "status": 5, "reason": ""},
    ]


def test_what_ended_without_a_link_is_told_to_the_next_one(node):
    bridge, _ = node.connect()
    node.spawn(bridge, "import time, sys\nwhile not os.path.exists('go'): time.sleep(0.01)\nsys.exit(9)")
    bridge.hang_up()
    (node.folder / "go").touch()
    wait_until(lambda: node.connect()[1]["ranks"][0]["status"] == 9)


def test_a_bridge_that_is_killed_leaves_agent_and_ranks_alone(node):
    bridge, first = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    kill_hard(bridge.process.pid)
    _, second = node.connect()
    assert second["pid"] == first["pid"]
    assert second["ranks"] == [{"attempt": 0, "rank": 0, "pid": pid, "status": None, "reason": ""}]


def test_a_newcomer_learns_the_sizes_of_files_that_no_longer_grow(node):
    bridge, _ = node.connect()
    node.spawn(bridge, "os.write(1, b'x' * 123); import signal; signal.pause()")
    bridge.expect("grew", sizes=[[0, 123, 0, 0]])
    bridge.hang_up()
    again, _ = node.connect()
    again.expect("grew", sizes=[[0, 123, 0, 0]])


def test_on_disconnect_stop_ends_the_ranks_and_then_the_agent(node):
    bridge, hello = node.connect(on_disconnect="stop")
    (pid,) = node.spawn(bridge, FOR_EVER)
    bridge.hang_up()
    wait_gone(pid, hello["pid"], hello["warden"], seconds=10)
    assert sockets() == []


def test_a_lease_that_is_over_ends_the_ranks_and_then_the_agent(node):
    bridge, hello = node.connect(lease=0.3, stop_ladder=[["SIGTERM", 0.2], ["SIGKILL", 5]])
    (pid,) = node.spawn(bridge, STUBBORN)
    bridge.hang_up()
    wait_gone(pid, hello["pid"], hello["warden"], seconds=10)
    assert sockets() == []


def test_a_lease_does_not_run_while_somebody_is_connected(node):
    bridge, _hello = node.connect(lease=0.05)
    (pid,) = node.spawn(
        bridge, "import time\nfor n in range(40): print(n); time.sleep(0.01)\nimport signal; signal.pause()"
    )
    wait_until(lambda: node.out(0).endswith(b"39\n"))
    bridge.settle()
    assert is_alive(pid)


# --- an agent that is killed


def test_the_ranks_of_a_killed_agent_live_and_its_successor_adopts_them(node):
    bridge, first = node.connect()
    pids = node.spawn(bridge, FOR_EVER, FOR_EVER)
    kill_hard(first["pid"])
    _, second = node.connect()
    assert second["pid"] != first["pid"]
    assert second["warden"] == first["warden"]
    assert [(rank["pid"], rank["status"]) for rank in second["ranks"]] == [(pid, None) for pid in pids]
    assert all(is_alive(pid) for pid in pids)


def test_the_link_to_a_killed_agent_ends_at_once(node):
    """The supervisor is back as soon as it notices; until then nobody sees what happens to the ranks."""
    bridge, first = node.connect()
    node.spawn(bridge, FOR_EVER)
    kill_hard(first["pid"])
    bridge.wait_ended(2)


def test_how_an_adopted_rank_ended_is_known(node):
    bridge, first = node.connect()
    wait = "import time, sys\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    node.spawn(bridge, wait + "sys.exit(4)", wait + "os.kill(os.getpid(), 6)")
    kill_hard(first["pid"])
    again, _ = node.connect()
    (node.folder / "go").touch()
    assert again.expect("ended", rank=0)["status"] == 4
    assert again.expect("ended", rank=1)["status"] == -6


def test_how_ranks_ended_while_there_was_no_agent_is_known(node):
    """The warden is held, so that nobody starts an agent before all ranks have ended; then both have much to do at once."""
    bridge, first = node.connect()
    os.mkfifo(node.folder / "gate")
    statuses = [rank % 7 + 1 for rank in range(40)]
    node.spawn(bridge, *map(str, statuses), argv=["/bin/sh", "-c", "read x < gate; exit $PROGRAM"])
    pids = [bridge.expect("spawned", rank=rank)["pid"] for rank in range(40)]
    os.kill(first["warden"], signal.SIGSTOP)
    kill_hard(first["pid"])
    while any(is_alive(pid) for pid in pids):
        with contextlib.suppress(OSError):  # ENXIO: nobody reads it now
            os.close(os.open(node.folder / "gate", os.O_WRONLY | os.O_NONBLOCK))
    os.kill(first["warden"], signal.SIGCONT)
    again, second = node.connect()
    assert second["pid"] != first["pid"]
    known = {rank["rank"]: rank["status"] for rank in second["ranks"]}
    assert sorted(known) == list(range(40))
    assert [known[rank] or again.expect("ended", rank=rank)["status"] for rank in range(40)] == statuses


def test_the_group_of_an_adopted_rank_is_killed_when_its_leader_exits(node):
    bridge, first = node.connect()
    program = child_program("signal.signal(15, signal.SIG_IGN)", then="signal.pause()")
    (_pid,) = node.spawn(bridge, program)
    child = child_of(node)
    kill_hard(first["pid"])
    again, _ = node.connect()
    again.send(type="signal", attempt=0, rank=0, signal=signal.SIGTERM)
    assert again.expect("ended")["status"] == -signal.SIGTERM
    wait_gone(child, seconds=2)


def test_without_agent_and_warden_the_next_bridge_starts_both_and_adopts(node):
    bridge, first = node.connect()
    pids = node.spawn(bridge, FOR_EVER, FOR_EVER)
    kill_hard(first["warden"])
    kill_hard(first["pid"])
    again, second = node.connect()
    assert {second["pid"], second["warden"]}.isdisjoint({first["pid"], first["warden"]})
    assert [(rank["pid"], rank["status"]) for rank in second["ranks"]] == [(pid, None) for pid in pids]
    again.send(type="stop", attempt=0, at_once=False)
    wait_gone(*pids)


def test_a_rank_that_ended_unseen_is_lost_and_no_status_is_made_up(node):
    bridge, first = node.connect()
    (_pid,) = node.spawn(bridge, "import time, sys\nwhile not os.path.exists('go'): time.sleep(0.01)\nsys.exit(0)")
    kill_hard(first["warden"])
    kill_hard(first["pid"])
    again, _ = node.connect()
    (node.folder / "go").touch()
    assert "no agent" in again.expect("lost", rank=0)["reason"]


def test_an_agent_whose_warden_was_killed_goes_on_and_closes_without_a_trace(node):
    bridge, hello = node.connect()
    (_pid,) = node.spawn(bridge, FOR_EVER)
    kill_hard(hello["warden"])
    wait_until(lambda: parent_of(hello["pid"]) != hello["warden"])
    bridge.send(type="signal", attempt=0, rank=0, signal=signal.SIGTERM)
    assert bridge.expect("ended")["status"] == -signal.SIGTERM
    bridge.send(type="close")
    wait_gone(hello["pid"])
    assert sockets() == []


def test_the_number_of_a_dead_warden_may_be_anybodys(node, work):
    """An agent that outlives its warden must not take whoever has that number now for its own family."""
    stranger = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert stranger.stdout is not None
    with stranger:
        child = int(stranger.stdout.readline())
        code = (
            "import socket, sys\n"
            "from engine.node.agent import Agent, become_subreaper\n"
            "become_subreaper()\n"
            f"Agent({str(work)!r}, socket.socket(), {stranger.pid}, 'nobody')._clear(0)\n"
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=20, check=True)
        alive = is_alive(child)
        kill_hard(child)
        kill_hard(stranger.pid)
    assert alive


def test_an_agent_that_listens_anew_is_found_after_it_was_killed(node):
    """The runtime folder went away with a login and came back with the next; then the agent is killed."""
    bridge, first = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck"
    shutil.rmtree(folder)
    wait_until(lambda: folder.exists() and list(folder.glob("*.sock")), what="the agent listens anew")
    node.connect()
    kill_hard(first["pid"])
    wait_gone(first["pid"])
    _, second = node.connect()
    assert second["pid"] != first["pid"]
    assert [rank["pid"] for rank in second["ranks"]] == [pid]


# --- clearing and closing


def test_clear_ends_children_that_left_their_group(node):
    bridge, _ = node.connect()
    node.spawn(bridge, child_program("os.setsid()", then="sys.exit(0)"))
    bridge.expect("ended", status=0)
    child = child_of(node)
    assert is_alive(child)
    bridge.send(type="clear", attempt=0)
    bridge.expect("cleared", attempt=0, abandoned=[])
    assert not is_alive(child)


def test_clear_ends_children_that_left_everything_but_their_mark(node):
    """A data loader's daemon that forked twice, left its session and lost its agent: nothing but its environment tells."""
    bridge, first = node.connect()
    node.spawn(bridge, child_program("os.setsid(); os.fork() and os._exit(0); os.setsid()", then="sys.exit(0)"))
    bridge.expect("ended", status=0)
    child = child_of(node)
    kill_hard(first["warden"])
    kill_hard(first["pid"])
    again, _ = node.connect()
    assert is_alive(child)
    again.send(type="clear", attempt=0)
    again.expect("cleared", attempt=0, abandoned=[])
    assert not is_alive(child)


def test_clear_ends_children_that_have_thrown_their_environment_away(node):
    bridge, _ = node.connect()
    program = child_program(
        "os.setsid(); print('child', os.getpid()); os.write(w, b'x'); os.execve('/bin/sleep', ['sleep', '600'], {})",
        then="sys.exit(0)",
    )
    node.spawn(bridge, program)
    bridge.expect("ended", status=0)
    child = child_of(node)
    bridge.send(type="clear", attempt=0)
    bridge.expect("cleared", attempt=0, abandoned=[])
    assert not is_alive(child)


def test_clear_leaves_the_agent_and_the_next_attempt_works(node):
    bridge, _ = node.connect()
    node.spawn(bridge, STUBBORN)
    bridge.send(type="clear", attempt=0)
    bridge.expect("cleared", attempt=0, abandoned=[])
    node.spawn(bridge, "raise SystemExit(6)", attempt=1)
    assert bridge.expect("ended", attempt=1)["status"] == 6


def test_close_leaves_no_process_no_socket_and_no_lock(node, home):
    bridge, _ = node.connect()
    node.open_store(bridge)
    bridge.expect("store")
    node.spawn(bridge, STUBBORN, child_program("os.setsid()", then="signal.pause()"))
    child_of(node, 1)
    bridge.send(type="close")
    bridge.wait_ended()
    assert bridge.process.wait(timeout=5) == 0
    assert processes_with("RANKDECK_HOME", str(home)) == []
    assert sockets() == []


def test_agents_of_different_runs_do_not_see_each_other(node, tmp_path):
    bridge, hello = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    other = Node(other_folder, "run-2")
    other_bridge, other_hello = other.connect()
    try:
        assert other_hello["pid"] != hello["pid"]
        assert other_hello["ranks"] == []
        other_bridge.send(type="close")
        wait_gone(other_hello["pid"], other_hello["warden"])
        bridge.settle()
        assert is_alive(pid)
    finally:
        other.leave()


# --- who may talk to it


def test_socket_and_folder_are_for_their_owner_only(node):
    node.connect()
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (path,) = folder.glob("*.sock")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((node.folder / "node").stat().st_mode) == 0o700
    assert stat.S_IMODE((node.folder / "node" / "agent.json").stat().st_mode) == 0o600


def test_files_of_ranks_are_for_their_owner_only(node):
    bridge, _ = node.connect()
    node.spawn(bridge, "pass")
    bridge.expect("ended")
    assert {stat.S_IMODE(Path(path).stat().st_mode) & 0o077 for path in node.files(0).values()} == {0}
    assert stat.S_IMODE(Path(node.files(0)["out"]).parent.stat().st_mode) == 0o700


def test_a_runtime_folder_that_is_open_to_others_is_closed(node):
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    node.connect()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_runtime_folder_of_somebody_else_is_refused(node, needs_root):
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    refused = node.boot().expect("refused")
    assert str(folder) in refused["reason"]
    assert "not a folder of this user" in refused["reason"]


def test_a_runtime_folder_that_is_a_link_is_refused(node, tmp_path):
    (tmp_path / "target").mkdir()
    (Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck").symlink_to(tmp_path / "target")
    assert "not a folder of this user" in node.boot().expect("refused")["reason"]


def test_another_user_is_turned_away_by_the_agent(node, needs_root):
    _, hello = node.connect()
    folder = Path(os.environ["XDG_RUNTIME_DIR"])
    (path,) = (folder / "rankdeck").glob("*.sock")
    code = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.settimeout(10)\n"
        "for path in (os.path.dirname(os.path.dirname(sys.argv[1])), os.path.dirname(sys.argv[1]), sys.argv[1]):\n"
        "    os.chmod(path, 0o777)\n"
        "os.setuid(65534)\n"
        "s.connect(sys.argv[1])\n"
        "print(s.recv(10))"
    )
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=20, check=False)
    assert said.stdout == b"b''\n", said.stderr
    assert is_alive(hello["pid"])


# --- the store


def test_the_store_port_listens_before_its_process_has_run(node):
    """The store here never accepts: whoever connects waits in the queue of a socket that is taken already."""
    bridge, _ = node.connect()
    node.open_store(bridge)
    port = bridge.expect("store", attempt=0)["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    with socket.socket() as taken, pytest.raises(OSError, match="in use"):
        taken.bind(("127.0.0.1", port))


def test_a_store_gets_its_listening_socket(node):
    bridge, _ = node.connect()
    accept = (
        "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.accept()[0].sendall(sys.argv[3].encode())"
    )
    node.open_store(bridge, argv=[sys.executable, "-c", accept])
    port = bridge.expect("store", attempt=0)["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        assert client.recv(10) == str(port).encode()
    bridge.expect("store_lost", attempt=0)


def test_stores_never_share_a_port(node, tmp_path):
    nodes = [node]
    for number in range(2):
        folder = tmp_path / f"other{number}"
        folder.mkdir()
        nodes.append(Node(folder, f"other-{number}"))
    try:
        bridges = [one.connect()[0] for one in nodes]
        for one, bridge in zip(nodes, bridges, strict=True):
            one.open_store(bridge)
        ports = {bridge.expect("store")["port"] for bridge in bridges}
        assert len(ports) == 3
    finally:
        for one in nodes[1:]:
            for bridge in one.bridges:
                bridge.send(type="close")
            one.leave()


def test_a_new_attempt_gets_a_new_store_and_the_old_one_ends(node):
    bridge, _ = node.connect()
    node.open_store(bridge)
    first = bridge.expect("store", attempt=0)["port"]
    node.open_store(bridge, attempt=1)
    assert bridge.expect("store", attempt=1)["port"] != first
    wait_until(lambda: not listens(first), 5, "the old store is gone")


def test_a_store_that_can_not_start_is_reported(node):
    bridge, _ = node.connect()
    node.open_store(bridge, argv=["/no/such/python"])
    assert "No such file" in bridge.expect("store_lost", attempt=0)["reason"]


# --- what goes wrong


@pytest.mark.parametrize(
    "request_frame",
    [
        {"type": "nonsense"},
        {"type": "spawn"},
        {"type": "signal", "attempt": 0},
        {"type": "library", "name": "x", "tar": "no base64!"},
        {"type": "hello"},
        {"type": 5},
        {"no": "type"},
        [],
        None,
        "spawn",
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_does_not_end_the_agent(node, request_frame):
    bridge, hello = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    bridge.write(agent.encode_frame(request_frame))
    bridge.settle()
    _again, second = node.connect()
    assert second["pid"] == hello["pid"]
    assert is_alive(pid)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\x02{]", b"GET / HTTP/1.1\r\n\r\n"], ids=repr)
def test_bytes_that_are_no_frames_end_the_link_and_not_the_agent(node, data):
    bridge, hello = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    bridge.write(data)
    _again, second = node.connect()
    assert second["pid"] == hello["pid"]
    assert is_alive(pid)


def test_a_rank_whose_files_can_not_be_made_ends_with_the_reason(node):
    bridge, _ = node.connect()
    (node.folder / "attempt_0").write_text("a file where a folder should be")
    node.spawn(bridge, "", argv=[sys.executable, "-c", "pass"])
    ended = bridge.expect("ended", rank=0)
    assert ended["status"] == 126
    assert "attempt_0" in ended["reason"]
    bridge.settle()


def test_a_library_that_can_not_be_unpacked_is_trouble_and_no_more(node):
    bridge, hello = node.connect()
    (node.folder / "node" / "library").write_text("a file where a folder should be")
    bridge.send(type="library", name="lib", tar="")
    assert bridge.expect("trouble", request="library")["reason"]
    assert is_alive(hello["pid"])


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../outside"])
def test_a_library_with_a_path_that_leads_out_is_refused(node, name):
    import base64
    import io
    import tarfile

    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    bridge, _ = node.connect()
    bridge.send(type="library", name="lib", tar=base64.b64encode(raw.getvalue()).decode())
    assert name in bridge.expect("trouble", request="library")["reason"]
    assert not (node.folder / "node" / "library" / "lib").exists()


def test_an_agent_that_can_not_write_its_memory_keeps_its_ranks(node):
    """A full disk, or a folder that somebody removed: five deaths of the agent in a row would end every rank."""
    bridge, hello = node.connect()
    first, _ = node.spawn(
        bridge, FOR_EVER, "import time, sys\nwhile not os.path.exists('go'): time.sleep(0.01)\nsys.exit(3)"
    )
    shutil.move(node.folder / "node", node.folder / "moved")
    (node.folder / "node").write_text("a file where a folder should be")
    (node.folder / "go").touch()
    try:
        assert bridge.expect("ended", rank=1)["status"] == 3
        bridge.settle()
        assert is_alive(hello["pid"])
        assert is_alive(first)
    finally:
        (node.folder / "node").unlink()
        shutil.move(node.folder / "moved", node.folder / "node")


def test_an_agent_that_keeps_dying_is_given_up_with_all_that_it_started(node):
    """Six deaths within ten seconds: something is badly wrong, and nothing may be left of it."""
    bridge, hello = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    victim = hello["pid"]
    for _ in range(6):
        kill_hard(victim)
        previous = victim
        children = f"/proc/{hello['warden']}/task/{hello['warden']}/children"

        def successor(previous: int = previous, children: str = children) -> int | bool:
            if not is_alive(hello["warden"]):
                return True
            return next((int(p) for p in Path(children).read_text().split() if int(p) not in (previous, pid)), False)

        victim = wait_until(successor)
        if victim is True:
            break
    wait_gone(hello["warden"], pid)


def test_the_memory_of_an_agent_names_every_rank_before_anybody_hears_of_it(node):
    bridge, _ = node.connect()
    pids = node.spawn(bridge, FOR_EVER, FOR_EVER)
    saved: dict[str, Any] = json.loads((node.folder / "node" / "agent.json").read_text())
    assert [rank[1] for rank in saved["ranks"]] == pids
    assert saved["attempt"] == 0
