"""Whether systemd ends this process when its user logs out, from files: nodes may lack systemd's tools."""

from __future__ import annotations

import contextlib
import os
import pwd
import re

FILES = ("usr/lib/systemd/logind.conf", "etc/systemd/logind.conf")
"""In the order in which systemd reads them."""

FOLDERS = ("usr/lib/systemd/logind.conf.d", "run/systemd/logind.conf.d", "etc/systemd/logind.conf.d")
"""Folders of further files, which are read after those in the order of their names; a later folder replaces a file of the same name."""

SETTING = re.compile(r"^(#?)(Kill\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)
"""A setting. In the main file, a comment shows the default of this build; elsewhere it says nothing."""


def ends_with_login(root: str = "/") -> str:
    """Returns what ends this process: `session`, the end of its session; `user`, the end of its user's last session; empty: neither.

    Args:
        root: of the file system.
    """
    with contextlib.suppress(OSError, KeyError, ValueError):
        if not os.path.isdir(os.path.join(root, "run/systemd/system")):
            return ""
        user = pwd.getpwuid(os.getuid()).pw_name
        with open(os.path.join(root, "proc/self/cgroup")) as file:
            group = file.read()
        if re.search(r"/session-[^/\n]*\.scope", group):
            return "session" if kills(user, settings(root)) else ""
        if re.search(r"/user@\d+\.service", group) and os.getuid() != 0:
            return "" if os.path.exists(os.path.join(root, "var/lib/systemd/linger", user)) else "user"
    return ""


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
