"""The cluster is what other tests take it for."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import namespaces
from tests.cluster.nodes import Cluster, Node
from tests.cluster.openssh import PORT
from tests.support import PATIENCE, ROOT, Process, check_err, entries, kill_hard, run_program, wait_gone, wait_until

BRIEFLY = ("-o", "ConnectTimeout=1")

GREET = "import socket, sys; print(socket.create_connection((sys.argv[1], sys.argv[2]), float(sys.argv[3])).makefile().readline())"
"""What an sshd says first, fetched by a node."""

LEAVES_A_PROCESS = entries("cluster/cluster", "leaves_a_process")

IS_KILLED = entries("cluster/cluster", "is_killed")


@pytest.fixture
def session(cluster: Cluster) -> Iterator[subprocess.Popen[str]]:
    """An open connection to node 1 with a command that goes on; its first line is the pid of the command."""
    argv = ["ssh", *cluster.ssh_options, "node1", "echo $$; exec sleep 600"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        yield process
        for left in cluster.node(1).processes():
            kill_hard(left.pid)
        process.kill()


def first_number(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def greeting(node: Node, address: str, seconds: float = 60) -> str:
    """What the sshd at this address says to a node; a traceback where it can't be reached."""
    done = node.run([sys.executable, "-c", GREET, address, str(PORT), str(seconds)], seconds=180)
    return (done.stdout + done.stderr).strip()


def test_a_session_gets_nothing_of_our_environment(cluster, monkeypatch):
    monkeypatch.setenv("RANKDECK_MARK", "mark")
    done = cluster.ssh("node1", "env")
    assert "RANKDECK" not in done.stdout
    assert "XDG_RUNTIME_DIR" not in done.stdout


def test_a_node_that_is_cut_off_is_silent_until_it_is_mended(cluster):
    cluster.node(1).cut()
    done = cluster.ssh("node1", "hostname", *BRIEFLY)
    check_err(done, 255, "Connection timed out")
    said = greeting(cluster.node(2), cluster.node(1).address, seconds=4)  # ARP would give up after 3: no route to host
    assert "timed out" in said
    assert cluster.ssh("node2", "hostname").stdout == "node2\n"
    cluster.node(1).mend()
    assert cluster.ssh("node1", "hostname").stdout == "node1\n"


def test_a_blocked_port_is_silent_and_others_are_not(cluster):
    cluster.node(1).block(PORT, PORT + 1)
    assert "timed out" in greeting(cluster.node(2), cluster.node(1).address, seconds=1)
    assert "timed out" in greeting(cluster.node(2), cluster.node(1).address6, seconds=1)
    assert greeting(cluster.node(1), cluster.node(1).address).startswith("SSH-2.0")
    cluster.node(1).mend()
    cluster.node(1).block(PORT + 1)
    assert greeting(cluster.node(2), cluster.node(1).address).startswith("SSH-2.0")


def test_noise_comes_before_whatever_a_command_says(cluster):
    cluster.node(1).noise("Welcome!\nQuota: 90 %\n")
    done = cluster.ssh("node1", "echo 'out  put'; echo error >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "Welcome!\nQuota: 90 %\nout  put\n")
    assert done.stderr.startswith("Welcome!\nQuota: 90 %\n")
    assert done.stderr.endswith("error\n")


def test_a_stopped_sshd_refuses_and_leaves_open_connections_alone(cluster, session):
    pid = first_number(session)
    cluster.node(1).refuse()
    done = cluster.ssh("node1", "hostname")
    check_err(done, 255, "Connection refused")
    assert session.poll() is None
    assert [process.pid for process in cluster.node(1).processes()] == [pid]
    cluster.node(1).start_sshd()
    assert cluster.ssh("node1", "hostname").stdout == "node1\n"


def test_a_hanging_sshd_accepts_and_says_nothing(cluster):
    cluster.node(1).hang()
    done = cluster.ssh("node1", "hostname", *BRIEFLY)
    check_err(done, 255, "timed out during banner exchange")
    assert not cluster.node(1).processes()
    cluster.node(1).start_sshd()
    assert cluster.ssh("node1", "hostname").stdout == "node1\n"


def test_killed_sessions_end_ssh_and_spare_its_command(cluster, session):
    pid = first_number(session)
    assert cluster.node(1).sessions()
    cluster.node(1).kill_sessions()
    assert session.wait(PATIENCE) == 255
    assert not cluster.node(1).sessions()
    wait_until(lambda: cluster.node(1).processes() == [Process(pid, "sleep 600")], what="the command goes on")


def test_a_hidden_folder_is_empty_there_and_what_is_written_stays_there(cluster, work):
    (work / "ours").touch()
    cluster.node(1).hide(work)
    done = cluster.ssh("node1", f"ls '{work}'; touch '{work}/theirs'; ls '{work}'")
    assert done.stdout == "theirs\n", done.stderr
    assert cluster.node(1).run(["ls", work]).stdout == "theirs\n"
    assert cluster.ssh("node2", f"ls '{work}'").stdout == "ours\n"
    assert os.listdir(work) == ["ours"]


def test_whatever_was_done_to_a_node_can_be_healed(cluster, work):
    node = cluster.node(1)
    node.noise("noise")
    node.new_host_key()
    node.hide(work)
    node.hosts.write_text("")
    node.cut()
    with subprocess.Popen(node.inside("sleep", "600")) as left:
        try:
            cluster.heal()
            assert left.wait(PATIENCE) == -signal.SIGKILL
        finally:
            left.kill()
    (work / "file").touch()
    assert cluster.ssh("node1", f"ls '{work}'").stdout == "file\n"
    assert greeting(node, "node2").startswith("SSH-2.0")


def test_nothing_is_left_of_a_cluster(tmp_path):
    with Cluster(tmp_path / "c", count=2) as cluster:
        bridge, node = cluster.bridge, cluster.node(2)
        pids = node.pids()
        subprocess.run(node.inside("sh", "-c", "trap '' TERM HUP; sleep 600 >/dev/null 2>&1 &"), check=True)
        pids += [process.pid for process in node.processes()]
        assert [name for name in namespaces.names() if name.startswith(bridge)] == [
            bridge,
            f"{bridge}-1",
            f"{bridge}-2",
        ]
    wait_gone(*pids, seconds=0)
    assert not [name for name in namespaces.names() if name.startswith(bridge)]
    assert not (tmp_path / "c").exists()


def test_nothing_is_left_of_a_test_that_was_killed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", IS_KILLED, tmp_path / "killed"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    bridge, was_there = done.stdout.split()
    assert was_there == "True"
    with Cluster(tmp_path / "next"):
        assert not [name for name in namespaces.names() if name.startswith(bridge)]


def test_a_test_that_leaves_a_process_on_a_node_fails(tmp_path):
    fixtures = "from tests.conftest import *\nfrom tests.cluster.conftest import *\ndel pytest_itemcollected\n"
    (tmp_path / "conftest.py").write_text(fixtures)  # that hook marks the tests of this folder
    inner: Path = tmp_path / "test_inner.py"
    inner.write_text(LEAVES_A_PROCESS)
    options = ["-q", "-c", str(ROOT / "pyproject.toml"), f"--basetemp={tmp_path / 'base'}"]
    done = run_program([sys.executable, "-m", "pytest", *options, inner], cwd=ROOT)
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "processes were left behind" in done.stdout
    assert "sleep 600" in done.stdout
