"""Whether processes outlive a login, read from faked files of systemd."""

import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.core.checks.findings import Login
from engine.core.checks.node_findings import login_finding
from engine.core.plan.plan import PlannedNode
from engine.core.plan.profile import Transport
from engine.node import login
from engine.node.login import ends_with_login, leave_session
from engine.node.probe.machine import ends_run
from tests.support import FakeBusctl, from_table

SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
MAIN, EXTRA = "etc/systemd/logind.conf", "etc/systemd/logind.conf.d/site.conf"
YES, NO = "[Login]\nKillUserProcesses=yes\n", "[Login]\n#KillUserProcesses=no\n"


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pytest names the folder after the real user
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="alice"))


def node(root: Path, group: str, **files: str) -> str:
    """The root folder of a node with systemd."""
    (root / "run/systemd/system").mkdir(parents=True)
    for name, text in {"proc/self/cgroup": group, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.usefixtures("user")
@from_table
def test_what_ends_processes_is_read_from_files(group: str, files: dict[str, str], ends_with: Login, tmp_path: Path):
    assert ends_with_login(node(tmp_path, group, **files)) == ends_with


@pytest.mark.usefixtures("user")
def test_without_systemd_processes_outlive_a_login(tmp_path: Path) -> None:
    root = node(tmp_path, SESSION, **{MAIN: YES})
    os.rmdir(tmp_path / "run/systemd/system")
    assert ends_with_login(root) == ""
    assert ends_with_login(str(tmp_path / "nothing")) == ""


@from_table
def test_the_finding_names_the_cure(ends_with: Login, transport: Transport, state: str, text: str, hint: str) -> None:
    found = login_finding(PlannedNode(name="a", transport=transport, ranks=(0,)), ends_with)
    assert (found.check, found.state) == ("login", state)
    assert text in found.text
    assert hint in found.hint


# --- leaving the session ------------------------------------------------------------------------------------------------------


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: None) -> Path:
    """The runtime folder of a user whose manager listens."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    (folder / "bus").touch()
    for name in login.JOBS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A node whose systemd would end this process with its session."""
    return node(tmp_path / "root", SESSION, **{MAIN: YES})


@pytest.fixture
def busctl(tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> FakeBusctl:
    fake = FakeBusctl(tmp_path / "bin", moves=Path(root, "proc/self/cgroup"))
    monkeypatch.setenv("PATH", str(fake.program.parent))  # without a real one
    return fake


@pytest.mark.usefixtures("bus")
def test_a_process_leaves_a_session_that_would_end_it(busctl: FakeBusctl, root: str) -> None:
    leave_session(root)
    (argv,) = busctl.calls()
    scope = argv.pop(7)
    assert scope.startswith(f"rankdeck-{os.getpid()}-")
    assert scope.endswith(".scope")
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    assert argv == [
        "--user", "call", *manager, "StartTransientUnit", "ssa(sv)a(sa(sv))", "fail",
        "2", "PIDs", "au", "1", str(os.getpid()), "CollectMode", "s", "inactive-or-failed", "0",
    ]  # fmt: skip
    assert ends_with_login(root) == "user"
    leave_session(root)
    assert len(busctl.calls()) == 1, "it has left already"


@pytest.mark.usefixtures("bus")
@pytest.mark.parametrize("job", login.JOBS)
def test_a_process_of_a_job_stays_where_its_scheduler_finds_it(
    busctl: FakeBusctl, root: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(job, "7")
    leave_session(root)
    assert busctl.calls() == []
    assert ends_run(root) == "session"


@pytest.mark.usefixtures("bus")
@from_table
def test_nothing_is_asked_for_where_no_session_ends_processes(
    group: str, settings: str, tmp_path: Path, busctl: FakeBusctl
) -> None:
    leave_session(node(tmp_path / "other", group, **{MAIN: settings}))
    assert busctl.calls() == []


def test_nothing_is_asked_for_where_no_manager_listens(bus: Path, busctl: FakeBusctl, root: str) -> None:
    (bus / "bus").unlink()
    leave_session(root)
    os.rmdir(Path(root, "run/systemd/system"))
    (bus / "bus").touch()
    leave_session(root)
    assert busctl.calls() == []


@pytest.mark.usefixtures("bus")
@pytest.mark.parametrize("end", ["exit 1", "exit 0", "exec /bin/sleep 1000", "rm"])
def test_a_manager_that_does_not_take_the_process_leaves_it_in_its_session(
    busctl: FakeBusctl, root: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "LEAVE_TIME", 0.5)
    if end == "rm":
        busctl.program.unlink()
    else:
        busctl.end_with(end)
    leave_session(root)
    assert ends_with_login(root) == "session"


@pytest.mark.usefixtures("bus", "busctl")
def test_a_check_tells_what_ends_a_run_that_leaves_the_session(root: str) -> None:
    assert ends_with_login(root) == "session"
    assert ends_run(root) == "user"
    linger = Path(root, "var/lib/systemd/linger/alice")
    linger.parent.mkdir(parents=True)
    linger.touch()
    assert ends_run(root) == ""
    Path(root, MAIN).write_text(NO)
    assert ends_run(root) == ""


def test_a_check_tells_what_ends_a_run_that_can_not_leave_the_session(bus: Path, busctl: FakeBusctl, root: str) -> None:
    busctl.program.unlink()
    assert ends_run(root) == "session"
    busctl.end_with("exit 0")
    (bus / "bus").unlink()
    assert ends_run(root) == "session"
