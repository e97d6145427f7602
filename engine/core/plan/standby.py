"""Standbys: which launches one can serve, how long it stays after a run from the shell, and when it gives way."""

import hashlib
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from engine.core.plan.plan import LaunchPlan

LINGER = 600.0  # seconds that a standby stays where neither profile nor environment says how long
MAX_LINGER = 86_400  # most seconds that it may stay

MOST_LINGERING = 2
"""Standbys of launches from the shell at the same time: a user goes back and forth between two environments."""

MEMORY_SHARE, MEMORY_ENOUGH = 0.1, 8 << 30
"""Memory is short if less than this share of it is left, and less than this number of bytes."""

TERMINAL_NAMES = frozenset(
    {"_", "SHLVL", "OLDPWD", "TMUX", "TMUX_PANE", "STY", "WINDOW", "WINDOWID", "SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION",
     "XDG_SESSION_ID", "TERM_SESSION_ID", "ITERM_SESSION_ID", "GNOME_TERMINAL_SCREEN", "KONSOLE_DBUS_SESSION", "VTE_VERSION"}
)  # fmt: skip
"""Variables that differ between shells and terminals of one user, and mean nothing to a training. Ranks of a launch that a standby
serves have those of an earlier shell."""

_LOGIN = re.compile(
    r"/user\.slice/user-\d+\.slice/(?:session-[^/\n]*\.scope"
    r"|user@\d+\.service(?:/[^/\n]+\.slice)*/(?:app|vte-spawn|tmux-spawn|rankdeck)-[^/\n]*)(?=\n|\Z)"
)
"""Control groups that systemd, terminals and rankdeck make for each login, window or supervisor; they limit nothing by themselves."""


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that a process hands down to its children, besides its folder. `environ`: its variables; `limits`: soft and hard, by
    number; `cgroups`: the text of `/proc/self/cgroup`; `namespaces`: their identities; `code`: version of rankdeck and time of its newest
    file."""

    environ: Mapping[str, str]
    limits: tuple[tuple[int, int], ...] = ()
    umask: str = ""
    niceness: int = 0
    cores: tuple[int, ...] = ()
    cgroups: str = ""
    namespaces: tuple[str, ...] = ()
    code: str = ""


def standby_key(plan: LaunchPlan, own: Circumstances) -> str:
    """Equal for two launches if ranks of one can be forked from the template of the other. A hash, because variables may be secret."""
    merged = {**plan.env_defaults, **own.environ, **plan.env}
    variables = sorted((name, value) for name, value in merged.items() if name not in TERMINAL_NAMES)
    rest = msgspec.structs.replace(own, environ={}, cgroups=_LOGIN.sub("/login", own.cgroups))
    data = msgspec.json.encode([plan.python, plan.reach.setup, plan.preload, _escaped(variables), rest])
    return hashlib.sha256(data).hexdigest()


def _escaped(variables: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same text as UTF-8 can hold it: variables may contain any bytes."""
    return [tuple(text.encode(errors="surrogateescape").hex() for text in pair) for pair in variables]  # type: ignore[misc]


def can_stand_by(plan: LaunchPlan) -> bool:
    """Whether a standby helps a launch like this: it forks its ranks, and all of them on this machine."""
    return plan.launch.warm and all(node.transport == "local" for node in plan.nodes)


def linger_seconds(wanted: float | Literal["off"] | None, variable: str | None, *, in_job: bool) -> float:
    """How long a standby stays after a run from the shell; 0: none stays. `variable`: `RANKDECK_LINGER`, if it is set. `in_job`: part of
    a scheduler's job, which ends when its script does. Raises ValueError: the variable is neither a number of seconds nor `off`."""
    if wanted is None and variable:
        wanted = "off" if variable == "off" else float(variable)
        if wanted != "off" and not 0 <= wanted <= MAX_LINGER:
            raise ValueError(f"{wanted:g} is not from 0 to {MAX_LINGER}")
    if wanted is None:
        return 0.0 if in_job else LINGER
    return 0.0 if wanted == "off" else wanted


def is_memory_short(available: int, total: int) -> bool:
    """Whether a standby should give its memory back; in bytes."""
    return available < min(total * MEMORY_SHARE, MEMORY_ENOUGH)
