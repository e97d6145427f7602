"""rsync: brings a folder to a node that does not share it, over the same ssh as everything else."""

from __future__ import annotations

from engine.core.plan.plan import Reach
from engine.launchers import ssh

TIMEOUT = 60
"""Seconds without a byte after which it gives up: a link that is cut would keep it for hours."""


def argv(node: str, folder: str, reach: Reach) -> list[str]:
    """The command that makes a node's folder hold what this machine's does, but for what `.gitignore` files leave out.

    Files that are only on the node stay: they may be what a training has written.

    Args:
        node: its name.
        folder: an absolute path, the same on both.
        reach: what the user wants of every connection.

    Raises:
        ValueError: a node that ssh might take for anything but a node.
    """
    remote_shell = ssh.argv(node, ["true"], reach)
    words = remote_shell[: remote_shell.index("--")]
    user, at, host = node.rpartition("@")
    target = f"{user}{at}[{host}]" if ":" in host else node
    return [
        "rsync",
        "--archive",
        "--protect-args",  # the path reaches the node as it is, past its shell
        f"--timeout={TIMEOUT}",
        "--exclude=/.git",
        "--filter=:- .gitignore",
        "--rsh",
        " ".join(map(_quoted, words)),
        "--",
        f"{folder.rstrip('/')}/",
        f"{target}:{folder.rstrip('/')}/",
    ]


def _quoted(word: str) -> str:
    """A word of `--rsh`, which rsync takes apart by itself: a quote inside quotes is written twice."""
    return "'" + word.replace("'", "''") + "'"
