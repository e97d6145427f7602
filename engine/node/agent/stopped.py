"""Ends processes of ours that a signal has stopped: others wait for them, and nothing would continue them."""

from __future__ import annotations

import signal

from engine.node.agent.processes import kill_quietly, process_status

STOPPED_LIMIT = 10
"""Looks, one a second, in which a process may be found stopped. They are counted instead of time: where a batch system suspends a
whole job, this process is stopped too."""


class StoppedWatch:
    """Counts for how many looks processes have been stopped."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def look(self, pids: set[int]) -> list[int]:
        """Looks at processes, about once a second. Returns those that it has ended.

        Args:
            pids: of processes whose numbers can't belong to another one yet.
        """
        counts = {pid: self._counts.get(pid, 0) + 1 for pid in pids if (process_status(pid) or (0, ""))[1] == "T"}
        over = [pid for pid, count in counts.items() if count >= STOPPED_LIMIT]
        for pid in over:
            kill_quietly(pid, signal.SIGKILL)
        self._counts = {pid: count for pid, count in counts.items() if pid not in over}
        return over
