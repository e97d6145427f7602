"""Limits of a node, read from faked files of the kernel."""

import os
import resource
from pathlib import Path

import pytest

from engine.core.checks.node_findings import rank_capacity
from engine.node import limits
from engine.node.probe import allowed
from tests.support import from_table

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> str:
    """Makes files below a folder. Returns the folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


USER, SCOPE = "sys/fs/cgroup/user.slice/user-7.slice", "sys/fs/cgroup/user.slice/user-7.slice/session-1.scope"
VERSION_2 = {"proc/self/cgroup": "0::/user.slice/user-7.slice/session-1.scope\n"}
VERSION_1 = {"proc/self/cgroup": "9:pids,cpu:/jobs/5\n4:memory:/jobs/5\n1:name=systemd:/x\n"}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        (VERSION_2, None),
        ({**VERSION_2, f"{USER}/memory.max": f"{4 * GIB}\n", f"{SCOPE}/memory.max": "max\n"}, 4 * GIB),
        ({**VERSION_2, f"{USER}/memory.max": f"{4 * GIB}\n", f"{SCOPE}/memory.max": f"{GIB}\n"}, GIB),
        ({**VERSION_1, "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes": f"{2 * GIB}\n"}, 2 * GIB),
        ({**VERSION_1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_the_smallest_limit_of_all_control_groups_counts(tmp_path: Path, files: dict[str, str], limit: int | None):
    assert allowed.memory_limit(write(tmp_path, files)) == limit


@from_table
def test_the_smallest_limit_of_processor_time_counts(files: dict[str, str], limit: float | None, tmp_path: Path):
    assert allowed.cpu_limit(write(tmp_path, files)) == limit


@pytest.fixture
def no_ulimit(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda what: unlimited)


@pytest.mark.usefixtures("no_ulimit")
@from_table
def test_processes_that_a_control_group_still_allows(files: dict[str, str], left: int | None, tmp_path: Path) -> None:
    assert limits.processes_left(write(tmp_path, files)) == left


def test_a_process_whose_name_is_not_utf_8_is_counted_too(tmp_path: Path) -> None:
    (tmp_path / "proc/5").mkdir(parents=True)
    (tmp_path / "proc/5/status").write_bytes(b"Name:\tnaiv\xc3\nUid:\t7\t7\t7\t7\nThreads:\t3\n")
    assert limits.threads_of(7, str(tmp_path)) == 3


@pytest.mark.usefixtures("no_ulimit")
def test_a_control_group_whose_name_is_not_utf_8_is_read_too(tmp_path: Path) -> None:
    group = os.fsencode(write(tmp_path, {"proc/self/cgroup": ""})) + b"/sys/fs/cgroup/\xc3"
    (tmp_path / "proc/self/cgroup").write_bytes(b"0::/\xc3\n")
    os.makedirs(group)
    for name, number in ((b"pids.max", b"9"), (b"pids.current", b"2")):
        with open(os.path.join(group, name), "wb") as file:
            file.write(number)
    assert limits.processes_left(str(tmp_path)) == 7


def test_the_users_own_limit_counts_threads_of_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    status = "Name:\tx\nUid:\t{0}\t{0}\t{0}\t{0}\nThreads:\t{1}\n"
    files = {
        "proc/5/status": status.format(7, 3),
        "proc/6/status": status.format(8, 50),
        "proc/7/status": status.format(7, 2),
    }
    root = write(tmp_path, {**files, "proc/8/comm": "gone"})
    assert limits.threads_of(7, root) == 5
    monkeypatch.setattr(os, "getuid", lambda: 7)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (20, 30))
    assert limits.processes_left(root) == 15
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert limits.processes_left(root) is None


def test_limits_of_each_process_are_those_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    soft = {resource.RLIMIT_CPU: 60, resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_FSIZE: 1 << 20}
    monkeypatch.setattr(resource, "getrlimit", lambda number: (soft[number], resource.RLIM_INFINITY))
    assert allowed.process_limits() == {"cpu": 60, "fsize": 1 << 20}


@from_table
def test_open_files_are_counted_as_the_agent_raises_them(
    both: tuple[int, int], files: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: both)
    assert limits.open_files() == files


def test_the_room_on_a_node_is_that_of_its_tightest_limit() -> None:
    assert rank_capacity(None, None) is None
    room = rank_capacity(1024, 400)
    assert room is not None
    assert room.ranks == 100
    assert rank_capacity(70, 400) == min(rank_capacity(70, None), rank_capacity(None, 400))  # type: ignore[type-var]
