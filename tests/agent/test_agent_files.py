"""A rank may put anything in the place of its files: an agent never waits for it, and reads nothing else through it."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.linux.files import NOT_REGULAR
from engine.node.agent.files import first_words, is_same_file, open_log, open_watched, read_from
from engine.node.agent.ranks.relay import Relay
from engine.node.agent.state import Rank
from tests.agent.driver import FOR_EVER, Node
from tests.support import PATIENCE, ROOT, entries, is_alive, kill_hard, wait_gone, wait_until


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(path.parent)  # the path of a socket is short
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("needs root: it makes a device")


def make_link(path: Path) -> None:
    target = path.with_name("secret")
    target.write_text("secret")
    path.symlink_to(target)


MAKERS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "device": make_device,
    "link": make_link,
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
}


@pytest.fixture(params=MAKERS)
def put(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Puts something else in the place of a file."""

    def put(path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        MAKERS[request.param](path)

    return put


def test_what_is_not_a_regular_file_is_neither_written_nor_read(tmp_path: Path, put: Callable[[Path], None]) -> None:
    path = tmp_path / "rank_0.out"
    put(path)
    with pytest.raises(OSError, match=NOT_REGULAR):
        open_log(str(path))
    watched = open_watched(str(path))
    assert os.read(watched, 100) == b""
    os.close(watched)
    assert read_from(str(path), 0, 100) == ""
    assert first_words(str(path)) == "it said nothing"
    assert not is_same_file([str(path), ""])


def test_a_log_is_opened_as_programs_expect_it(tmp_path: Path) -> None:
    with open_log(str(tmp_path / "rank_0.out")) as log:
        assert os.get_blocking(log.fileno())
        assert not os.get_inheritable(log.fileno())


@pytest.mark.parametrize("kind", ["out", "err", "metrics"])
def test_an_agent_that_adopts_a_rank_does_not_wait_for_what_is_in_place_of_its_file(
    node: Node, kind: str, put: Callable[[Path], None]
) -> None:
    bridge, first = node.connect()
    (pid,) = node.spawn(bridge, FOR_EVER)
    path = Path(node.files(0)[kind])
    other = Path(node.files(0)["err" if kind == "out" else "out"])
    wait_until(lambda: node.out(0))
    put(path)
    kill_hard(first["pid"])
    wait_gone(first["pid"])
    bridge.wait_ended()
    again, second = node.connect()
    assert second["pid"] != first["pid"]
    assert [rank["pid"] for rank in second["ranks"]] == [pid]
    size = other.stat().st_size
    with other.open("ab") as more:
        more.write(b"more\n")
    stream = ("out", "err").index(other.suffix[1:])
    wait_until(lambda: again.expect("grew")["sizes"][0][1 + stream] == size + 5)
    again.send(type="stop", attempt=0, at_once=True)
    assert again.expect("ended", rank=0)["status"] < 0


@pytest.mark.parametrize("kind", ["out", "err"])
def test_a_rank_does_not_start_with_output_into_anything_but_a_file(node: Node, kind: str, put: Callable[[Path], None]):
    bridge, hello = node.connect()
    path = Path(node.files(0)[kind])
    put(path)
    node.spawn(bridge, "", argv=["/bin/sh", "-c", "echo written; echo written >&2"])
    ended = bridge.expect("ended", rank=0)
    assert ended["status"] == 126
    assert ended["reason"] == f"can't start: {NOT_REGULAR} {str(path)!r}"
    bridge.settle()
    assert is_alive(hello["pid"])


WATCH = entries("agent/agent_files", "watch")


def test_a_rank_does_not_wait_for_what_is_in_place_of_its_stacks(tmp_path: Path, put: Callable[[Path], None]) -> None:
    path = tmp_path / "rank_0.stacks"
    put(path)
    command = [sys.executable, "-I", "-c", WATCH, str(ROOT), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == ("goes on\n", "")


def test_files_are_looked_at_only_when_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look may ask the server of a home that machines share."""
    rank, sent = Rank(3, [str(tmp_path / name) for name in ("out", "err", "metrics")]), []
    looks: list[Relay] = []
    state: Any = SimpleNamespace(ranks={3: rank}, attempt=0, relays=False)
    relay = Relay(state, lambda **message: sent.append(message["sizes"]), lambda: True)
    relay.look_for_growth()
    with monkeypatch.context() as patch:
        patch.setattr(Relay, "report_growth", looks.append)
        for _ in range(20):
            relay.look_for_growth()
    assert looks == []
    (tmp_path / "err").write_bytes(b"12345")
    relay.look_for_growth()
    assert sent == [[[3, 0, 5, 0]]]
    state.attempt, state.ranks = (
        1,
        {3: Rank(3, [str(tmp_path / f"again.{name}") for name in ("out", "err", "metrics")])},
    )
    relay.look_for_growth()
    (tmp_path / "again.out").write_bytes(b"1")
    relay.look_for_growth()
    assert sent[1:] == [[[3, 1, 0, 0]]]
