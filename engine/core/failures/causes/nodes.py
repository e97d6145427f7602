"""Nodes that ssh does not reach. What they mean in words is `connect_trouble`'s; here are their ids, and what can be copied."""

from __future__ import annotations

from engine.core.failures.causes.cause import Cause

_WORDS = "see `ssh -v` to that node"

CAUSES: tuple[Cause, ...] = (
    Cause(
        id="S2",
        pattern=r"^(?:@ {1,8}WARNING: )?REMOTE HOST IDENTIFICATION HAS CHANGED|^Host key verification failed",
        advice=_WORDS,
        fix="ssh-keygen -R NODE; ssh NODE true",
    ),
    Cause(
        id="S5",
        pattern=r"Too many authentication failures",
        advice=_WORDS,
        fix="ssh -o IdentitiesOnly=yes -i KEY NODE true",
    ),
    Cause(
        id="S1",
        pattern=r"^(?P<user>\S{1,200}): Permission denied \((?P<ways>[^)\n]{1,200})\)",
        advice=_WORDS,
        fix="ssh-copy-id NODE",
    ),
    Cause(
        id="S3",
        pattern=r"^ssh: Could not resolve hostname (?P<host>[^\s:-][^\n:]{0,199}):",
        advice=_WORDS,
        fix="getent hosts {host}",
    ),
    Cause(
        id="S4",
        pattern=r"^ssh: connect to host (?P<host>[^\s-]\S{0,199}) port (?P<port>\d+): ",
        advice=_WORDS,
        fix="nc -zv {host} {port}",
    ),
    Cause(
        id="S6",
        pattern=r"^(?:kex_exchange_identification|ssh_exchange_identification): |^Connection (?:closed|reset) by \S{1,200} port \d+",
        advice=_WORDS,
        fix="ssh -v NODE true",
    ),
)
