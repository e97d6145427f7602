"""Standbys and templates of the user: which launches one can serve, and how long a template stays after a run."""

import hashlib
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import MAX_LINGER

LINGER = 600.0  # seconds that a template stays where neither profile nor environment says how long

TERMINAL_NAMES = frozenset(
    {"_", "SHLVL", "OLDPWD", "TMUX", "TMUX_PANE", "STY", "WINDOW", "WINDOWID", "SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION",
     "XDG_SESSION_ID", "TERM_SESSION_ID", "ITERM_SESSION_ID", "GNOME_TERMINAL_SCREEN", "KONSOLE_DBUS_SESSION", "VTE_VERSION"}
)  # fmt: skip
"""Variables that differ between shells and terminals of one user, and mean nothing to a training. Ranks of a launch that a standby
serves have those of the app."""

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
    """A key of a launch. Launches with equal keys can use the same standby. A hash, because variables may be secret."""
    merged = {**plan.env_defaults, **own.environ, **plan.env}
    variables = sorted(pair for pair in merged.items() if pair[0] not in TERMINAL_NAMES)
    # In hexadecimal digits, because variables may contain bytes that are not UTF-8.
    return _key(plan, own, [[text.encode(errors="surrogateescape").hex() for text in pair] for pair in variables])


def template_key(plan: LaunchPlan, own: Circumstances, likeness: str) -> str:
    """Equal for two launches if the template of the user can serve both. `own`: without the properties that a fork may set: variables,
    limits, umask and cores. `likeness`: from `engine.node.user_template.likeness`."""
    return _key(plan, own, likeness)


def _key(plan: LaunchPlan, own: Circumstances, variables: object) -> str:
    rest = msgspec.structs.replace(own, environ={}, cgroups=_LOGIN.sub("/login", own.cgroups))
    whole = [plan.python, plan.reach.setup, plan.preload, variables, rest]
    return hashlib.sha256(msgspec.json.encode(whole)).hexdigest()


def can_stand_by(plan: LaunchPlan) -> bool:
    """Whether a standby helps a launch: its ranks are forked, and all run on this machine."""
    return plan.launch.warm and all(node.transport == "local" for node in plan.nodes)


def linger_seconds(wanted: float | Literal["off"] | None, variable: str | None, *, in_job: bool) -> float:
    """How long a template stays after a run; 0: the run uses none that stays. `variable`: `RANKDECK_LINGER`, if it is set. `in_job`: part of
    a scheduler's job, which ends when its script does. Raises ValueError: the variable is neither a number of seconds nor `off`."""
    if wanted is None and variable:
        wanted = "off" if variable == "off" else float(variable)
        if wanted != "off" and not 0 <= wanted <= MAX_LINGER:
            raise ValueError(f"{wanted:g} is not from 0 to {MAX_LINGER}")
    if wanted is None:
        return 0.0 if in_job else LINGER
    return 0.0 if wanted == "off" else wanted
