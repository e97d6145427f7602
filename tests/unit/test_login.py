"""Whether processes outlive a login, read from faked files of systemd."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.core.checks.findings import Login
from engine.core.checks.node_findings import login_finding
from engine.core.plan.plan import PlannedNode, Transport
from engine.node.login import ends_with_login

SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
SESSION_V1 = "4:memory:/user.slice\n1:name=systemd:/user.slice/user-1000.slice/session-c1.scope\n"
SERVICE = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-5.scope\n"
MAIN, EXTRA = "etc/systemd/logind.conf", "etc/systemd/logind.conf.d/site.conf"
YES, NO = "[Login]\nKillUserProcesses=yes\n", "[Login]\n#KillUserProcesses=no\n"


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
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
@pytest.mark.parametrize(
    ("group", "files", "ends_with"),
    [
        (SESSION, {}, ""),
        (SESSION, {MAIN: NO}, ""),
        (SESSION, {MAIN: "[Login]\n#KillUserProcesses=yes\n"}, "session"),
        (SESSION, {MAIN: YES}, "session"),
        (SESSION_V1, {MAIN: YES}, "session"),
        (SESSION, {MAIN: YES, EXTRA: "KillUserProcesses = no\n"}, ""),
        (SESSION, {MAIN: YES, EXTRA: NO}, "session"),
        (SESSION, {MAIN: YES + "#KillUserProcesses=no\n"}, "session"),
        (SESSION, {"usr/lib/systemd/logind.conf": NO, EXTRA: YES}, "session"),
        (SESSION, {EXTRA: YES, "usr/lib/systemd/logind.conf.d/site.conf": NO}, "session"),
        (SESSION, {MAIN: YES + "KillExcludeUsers=root alice\n"}, ""),
        (SESSION, {MAIN: YES + "KillOnlyUsers=bob\n"}, ""),
        (SESSION, {MAIN: YES, "var/lib/systemd/linger/alice": ""}, "session"),
        (SERVICE, {MAIN: YES}, "user"),
        (SERVICE, {MAIN: NO, "var/lib/systemd/linger/alice": ""}, ""),
        ("0::/system.slice/slurmstepd.scope/job_5\n", {MAIN: YES}, ""),
        ("0::/\n", {MAIN: YES}, ""),
    ],
)
def test_what_ends_processes_is_read_from_files(
    tmp_path: Path, group: str, files: dict[str, str], ends_with: Login
) -> None:
    assert ends_with_login(node(tmp_path, group, **files)) == ends_with


@pytest.mark.usefixtures("user")
def test_without_systemd_processes_outlive_a_login(tmp_path: Path) -> None:
    root = node(tmp_path, SESSION, **{MAIN: YES})
    os.rmdir(tmp_path / "run/systemd/system")
    assert ends_with_login(root) == ""
    assert ends_with_login(str(tmp_path / "nothing")) == ""


@pytest.mark.parametrize(
    ("ends_with", "transport", "state", "text", "hint"),
    [
        ("", "local", "ok", "processes outlive it", ""),
        ("session", "local", "warn", "when you log out (KillUserProcesses=yes)", "systemd-run --user --scope rankdeck"),
        ("session", "ssh", "warn", "when the connection breaks", "KillUserProcesses=no"),
        ("user", "local", "warn", "when your last session ends", "loginctl enable-linger"),
        ("user", "ssh", "warn", "when your last session ends", "on that node: loginctl enable-linger"),
    ],
)
def test_the_finding_names_the_cure(ends_with: Login, transport: Transport, state: str, text: str, hint: str) -> None:
    found = login_finding(PlannedNode(name="a", transport=transport, ranks=(0,)), ends_with)
    assert (found.check, found.state) == ("login", state)
    assert text in found.text
    assert hint in found.hint
