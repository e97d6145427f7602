"""Whether systemd ends this process when its user logs out, from files: nodes may lack systemd's tools; and how it leaves its session."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import time

FILES = ("usr/lib/systemd/logind.conf", "etc/systemd/logind.conf")  # in the order in which systemd reads them

FOLDERS = ("usr/lib/systemd/logind.conf.d", "run/systemd/logind.conf.d", "etc/systemd/logind.conf.d")
"""Folders of further files, which are read after those in the order of their names; a later folder replaces a file of the same name."""

SETTING = re.compile(r"^(#?)(Kill\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)
"""A setting. In the main file, a comment shows the default of this build; elsewhere it says nothing."""

JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "COBALT_JOBID", "OAR_JOB_ID", "FLUX_JOB_ID")
"""Variables that schedulers set in their jobs."""

LEAVE_TIME = 2.0  # seconds for the user's manager to take this process


def in_job() -> bool:
    """Whether this process is part of a scheduler's job."""
    return any(name in os.environ for name in JOBS)


def leave_session(root: str = "/") -> None:
    """Moves this process into a scope of the user's manager if systemd would end it with its session. Processes that it starts later are in that scope too.

    Without linger, the manager ends with the user's last session; `ends_with_login` shows it. A job stays where its scheduler finds it.
    Returns within LEAVE_TIME and never raises: if the manager does not take the process, it stays in its session.
    """
    if not may_leave(root):
        return
    import subprocess  # not needed elsewhere

    deadline, pid = time.monotonic() + LEAVE_TIME, str(os.getpid())
    manager = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
    scope = f"rankdeck-{pid}-{time.time_ns()}.scope"  # one of an earlier process of this number may exist
    unit = ("StartTransientUnit", "ssa(sv)a(sa(sv))", scope, "fail", "2", "PIDs", "au", "1", pid)
    argv = ["busctl", "--user", "call", *manager, *unit, "CollectMode", "s", "inactive-or-failed", "0"]
    nothing = subprocess.DEVNULL
    environment = {**os.environ, "XDG_RUNTIME_DIR": runtime_folder()}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            argv, env=environment, timeout=LEAVE_TIME, check=True, stdin=nothing, stdout=nothing, stderr=nothing
        )
        while ends_with_login(root) == "session" and time.monotonic() < deadline:  # the answer comes before the move
            time.sleep(0.005)


def may_leave(root: str) -> bool:
    """Whether this process would end with its session, and can ask its user's manager to take it."""
    return ends_with_login(root) == "session" and not in_job() and os.path.exists(os.path.join(runtime_folder(), "bus"))


def runtime_folder() -> str:
    """Returns the folder with the bus of the user's manager."""
    return os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"


def ends_with_login(root: str = "/") -> str:
    """Returns what ends this process: `session`, the end of its session; `user`, the end of its user's last session; empty: neither."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        if not os.path.isdir(os.path.join(root, "run/systemd/system")):
            return ""
        user = pwd.getpwuid(os.getuid()).pw_name
        with open(os.path.join(root, "proc/self/cgroup")) as file:
            group = file.read()
        if re.search(r"/session-[^/\n]*\.scope", group):
            return "session" if kills(user, settings(root)) else ""
        if re.search(r"/user@\d+\.service", group) and os.getuid() != 0:
            return "" if lingers(root) else "user"
    return ""


def lingers(root: str) -> bool:
    """Whether the user's manager goes on without a session. Raises KeyError for a user without a name."""
    return os.path.exists(os.path.join(root, "var/lib/systemd/linger", pwd.getpwuid(os.getuid()).pw_name))


def settings(root: str) -> dict[str, str]:
    """Returns the settings of logind about processes of users."""
    names = {}
    for folder in FOLDERS:
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(root, folder)):
                if name.endswith(".conf"):
                    names[name] = os.path.join(root, folder, name)
    found: dict[str, str] = {}
    main = [os.path.join(root, file) for file in FILES]
    for path in main + [path for _, path in sorted(names.items())]:
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            lines = SETTING.findall(file.read(1 << 16))
            if path in main:
                found.update((name, value) for mark, name, value in lines if mark)
            found.update((name, value) for mark, name, value in lines if not mark)
    return found


def kills(user: str, settings: dict[str, str]) -> bool:
    """Whether logind ends a user's processes with their session."""
    if settings.get("KillUserProcesses", "no").lower() not in ("yes", "true", "1", "on"):
        return False
    only, excluded = settings.get("KillOnlyUsers", "").split(), settings.get("KillExcludeUsers", "root").split()
    return user not in excluded and (not only or user in only)
