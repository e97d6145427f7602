"""Who may talk to an agent, its stores, and requests that make no sense."""

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from engine.node.agent import folders
from engine.node.agent.wire import encode_frame
from engine.supervisor.nodes import bridge
from tests.agent import driver
from tests.agent.driver import FOR_EVER, Bridge, Node, listens
from tests.support import PATIENCE, entries, is_alive, kill_hard, listener_of_another_user, wait_gone, wait_until

# --- who may talk to it


def test_socket_and_folder_are_for_their_owner_only(node):
    node.connect()
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (path,) = folder.glob("*.sock")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((node.folder / "node").stat().st_mode) == 0o700
    assert stat.S_IMODE((node.folder / "node" / "agent.json").stat().st_mode) == 0o600


def test_a_runtime_folder_that_every_user_can_write_to_is_not_used(node):
    base = Path(os.environ["XDG_RUNTIME_DIR"])
    base.chmod(0o777)
    node.connect()
    assert not (base / "rankdeck").exists()


def test_an_agent_of_another_user_is_not_talked_to(node, needs_root):
    """Somebody else's process listens where this run's folder says that its agent does."""
    path = Path(os.environ["XDG_RUNTIME_DIR"]) / "other.sock"
    (node.folder / "node").mkdir(mode=0o700)
    (node.folder / "node" / "socket").write_text(str(path))
    with listener_of_another_user(path):
        assert node.boot().expect("refused")["reason"] == f"{path} belongs to another user"


def test_another_user_is_turned_away_by_the_agent(node, needs_root):
    _, hello = node.connect()
    folder = Path(os.environ["XDG_RUNTIME_DIR"])
    (path,) = (folder / "rankdeck").glob("*.sock")
    code = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.settimeout(300)\n"
        "for path in (os.path.dirname(os.path.dirname(sys.argv[1])), os.path.dirname(sys.argv[1]), sys.argv[1]):\n"
        "    os.chmod(path, 0o777)\n"
        "os.setuid(65534)\n"
        "s.connect(sys.argv[1])\n"
        "print(s.recv(10))"
    )
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=PATIENCE, check=False)
    assert said.stdout == b"b''\n", said.stderr
    assert is_alive(hello["pid"])


def test_code_that_another_user_has_planted_in_the_folder_of_a_run_is_not_used(node, needs_root, tmp_path):
    """Without a runtime folder of the login, everything of a run on a node is below the temporary folder of all users."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    planted = shared / f"rankdeck-{os.geteuid()}"
    (planted / node.mark / "library" / "lib").mkdir(parents=True)
    for path in (planted, *planted.rglob("*")):
        os.chown(path, 65534, 65534)
    everything = sorted(planted.rglob("*"))
    env = {"XDG_RUNTIME_DIR": "", "TMPDIR": str(shared)}
    refused = node.boot({**node.hello(), "folder": ""}, env).expect("refused")
    assert refused["reason"] == f"{planted} is not a folder of this user"
    assert sorted(planted.rglob("*")) == everything


# --- the store


def test_the_store_port_listens_before_its_process_has_run_and_on_its_address_only(node):
    """The store here never accepts: whoever connects waits in the queue of a socket that is taken already."""
    bridge, _ = node.connect()
    node.open_store(bridge)
    port = bridge.expect("store", attempt=0)["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE):
        pass
    with socket.socket() as taken, pytest.raises(OSError, match="in use"):
        taken.bind(("127.0.0.1", port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=PATIENCE)


def test_a_store_gets_its_listening_socket(node):
    bridge, _ = node.connect()
    accept = (
        "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.accept()[0].sendall(sys.argv[3].encode())"
    )
    node.open_store(bridge, argv=[sys.executable, "-c", accept])
    port = bridge.expect("store", attempt=0)["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
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
    wait_until(lambda: not listens(first), what="the old store is gone")


def test_a_store_that_can_not_start_is_reported(node):
    bridge, _ = node.connect()
    node.open_store(bridge, argv=["/no/such/python"])
    assert "No such file" in bridge.expect("store_lost", attempt=0)["reason"]


# --- what goes wrong


@pytest.mark.parametrize(
    "request_frame", entries("agent/agent_guards", "a_request_that_makes_no_sense_does_not_end_the_agent"), ids=str
)
def test_a_request_that_makes_no_sense_does_not_end_the_agent(node, request_frame):
    bridge, hello = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    bridge.write(encode_frame(request_frame))
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
    children = Path(f"/proc/{hello['warden']}/task/{hello['warden']}/children")
    victims: set[int] = set()

    def is_given_up() -> bool:
        with contextlib.suppress(OSError):  # the warden has just ended
            for victim in {int(child) for child in children.read_text().split()} - {pid}:
                victims.add(victim)
                kill_hard(victim)
        return not is_alive(hello["warden"])

    wait_until(is_given_up, what="the warden gives up")
    assert len(victims) >= 6
    wait_gone(pid)


def test_the_memory_of_an_agent_names_every_rank_before_anybody_hears_of_it(node):
    bridge, _ = node.connect()
    pids = node.spawn(bridge, FOR_EVER, FOR_EVER)
    saved: dict[str, Any] = json.loads((node.folder / "node" / "agent.json").read_text())
    assert [rank[1] for rank in saved["ranks"]] == pids
    assert saved["attempt"] == 0


# --- what was left behind -----------------------------------------------------------------------------------------------


def test_the_files_of_runs_that_nobody_came_back_for_are_removed(tmp_path):
    folder = tmp_path / f"rankdeck-{os.geteuid()}"
    for name in ("forgotten", "held", "kept", "young", "written"):
        (folder / name / "attempt_0").mkdir(parents=True)
        (folder / name / "attempt_0/rank_0.out").write_text("hello\n")
    (folder / "kept" / folders.KEEP_FILE).touch()
    (folder / "a file").touch()
    (folder / "a link").symlink_to(tmp_path / "elsewhere")
    lock = folders.take_lock(str(folder / "held"))
    assert lock is not None
    past = time.time() - folders.ABANDONED_AFTER - 60
    for path in [*folder.rglob("*"), folder]:
        if path.parts[len(folder.parts) :][:1] != ("young",) and path != folder / "written/attempt_0/rank_0.out":
            os.utime(path, (past, past), follow_symlinks=False)
    folders.remove_abandoned(str(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["a file", "a link", "held", "kept", "written", "young"]
    os.close(lock)


def test_the_files_of_a_long_run_are_never_old_enough_to_be_removed_at_night(tmp_path):
    (tmp_path / "run/attempt_0").mkdir(parents=True)
    (tmp_path / "run/attempt_0/rank_0.out").write_text("hello\n")
    (tmp_path / "outside").touch()
    (tmp_path / "run/a link").symlink_to(tmp_path / "outside")
    everything = [tmp_path / "outside", *tmp_path.rglob("run"), *(tmp_path / "run").rglob("*")]
    for path in everything:
        os.utime(path, (0, 0), follow_symlinks=False)
    folders.keep_young(str(tmp_path / "run"))
    assert [path.name for path in everything if path.lstat().st_mtime == 0] == ["outside"]


def test_an_agent_in_a_temporary_folder_keeps_its_files_young(node, monkeypatch):
    """As if an hour passed at each look."""
    program = zlib.decompress(bridge.agent_program())
    hourly = b"KEEP_YOUNG_INTERVAL = 3600.0"
    assert hourly in program
    for module in (bridge, driver):
        monkeypatch.setattr(
            module, "agent_program", lambda: zlib.compress(program.replace(hourly, b"KEEP_YOUNG_INTERVAL = 0.0"))
        )
    node.connect(heartbeat=600.0)
    files = [path for path in (node.folder / "node").iterdir() if path.name != "agent.json"]
    assert files
    for path in files:
        os.utime(path, (0, 0), follow_symlinks=False)
    wait_until(lambda: all(path.lstat().st_mtime for path in files), what="all files are young again")


def test_only_a_nodes_own_folder_is_tidied_up(tmp_path):
    (tmp_path / "nodes/run").mkdir(parents=True)
    os.utime(tmp_path / "nodes/run", (0, 0))
    folders.remove_abandoned(str(tmp_path / "nodes"))
    assert (tmp_path / "nodes/run").exists()


# --- daemons of mpirun --------------------------------------------------------------------------------------------------


def start_daemon(bridge: Bridge, node: Node, command: str, attempt: int = 0) -> None:
    log = str(node.folder / f"attempt_{attempt}" / "mpirun.log")
    wanted = {"name": "mpirun's daemon", "command": command, "env": {}, "log": log}
    bridge.send(type="daemon", attempt=attempt, mpirun=wanted, env={}, env_defaults={}, library="lib", warm=False)


def test_a_daemon_of_mpirun_starts_once_in_an_attempt(node, tmp_path):
    bridge, _ = node.connect()
    node.spawn(bridge, FOR_EVER)
    start_daemon(bridge, node, f"echo started >> {tmp_path}/starts")
    assert bridge.expect("daemon_ended")["status"] == 0
    start_daemon(bridge, node, f"echo started >> {tmp_path}/starts")
    bridge.expect("daemon_ended")
    assert (tmp_path / "starts").read_text() == "started\n"


def test_a_daemon_that_is_asked_for_too_late_or_too_early_is_not_started(node, tmp_path):
    bridge, _ = node.connect()
    node.spawn(bridge, "pass")
    bridge.expect("ended")
    start_daemon(bridge, node, f"touch {tmp_path}/started", attempt=1)
    bridge.send(type="clear", attempt=0)
    bridge.expect("cleared")
    start_daemon(bridge, node, f"touch {tmp_path}/started")
    bridge.settle()
    assert not (tmp_path / "started").exists()
