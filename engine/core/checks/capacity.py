"""How many ranks a node has room for, by its limits."""

from __future__ import annotations

from typing import NamedTuple

from engine.core.words import count

FILES_OF_AGENT, FILES_PER_OWN_RANK = 64, 3
"""Files that an agent keeps open: some for itself, and the three of each of its ranks."""

THREADS_PER_RANK = 4
"""Processes and threads that a rank has at least: the main thread, and those of gloo and torch."""


class Capacity(NamedTuple):
    """The number of ranks that a node has room for, and what limits it."""

    ranks: int
    limit: str
    hint: str

    def words(self, ranks: int) -> str:
        """`room for 320 ranks, not 512: at most 1024 open files`. `ranks`: that are wanted."""
        return f"room for {count(self.ranks, 'rank')}, not {ranks}: {self.limit}"


def rank_capacity(open_files: int | None, processes: int | None) -> Capacity | None:
    """The room on a node, from the files that an agent may open and the processes that the user may start; None: no limit is known."""
    limits = []
    if open_files is not None:
        fit = max(0, open_files - FILES_OF_AGENT) // FILES_PER_OWN_RANK
        hint = "set a higher hard limit of open files (nofile) in /etc/security/limits.conf"
        limits.append(Capacity(fit, f"at most {open_files} open files", hint))
    if processes is not None:
        limit = f"at most {processes} more processes and threads, and a rank needs {THREADS_PER_RANK}"
        hint = "request more from the scheduler, or raise nproc in /etc/security/limits.conf or TasksMax of systemd"
        limits.append(Capacity(processes // THREADS_PER_RANK, limit, hint))
    return min(limits, default=None)
