"""What the parts of an agent share, and what its successor must know: written to `agent.json` before anybody hears of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal

from engine.node.agent.folders import write_atomically
from engine.node.agent.processes import descendants, kill_group, kill_quietly, lives, process_mark
from engine.node.agent.wire import PROTOCOL, Message


class Rank:
    """One rank's process.

    Args:
        number: the rank.
        files: its standard output, standard error and metrics.
    """

    def __init__(self, number: int, files: list[str]) -> None:
        self.number, self.files = number, files
        self.pid = self.start = self.generation = 0
        self.status: int | None = None
        """None while it runs."""
        self.ended_at = 0.0
        self.adopted = False
        """Whether another process is its parent: the template or the warden."""
        self.reason = ""
        self.parent = 0
        """Of its process, where that is adopted; 0: not seen yet."""
        self.missing_since: float | None = None
        self.watched: list[int] = []
        with contextlib.suppress(OSError):  # a folder that was removed: its growth is not seen, its ranks go on
            for path in files:
                self.watched.append(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self.sizes = [0] * len(files)
        self.sent = [0] * len(files)
        """Bytes of each file that were relayed."""

    def path(self, kind: str) -> str:
        """Of another file beside those."""
        return self.files[2][: -len("metrics")] + kind

    def signal(self, number: int) -> None:
        """Signals its whole group, if its number is still its own."""
        mark = process_mark(self.pid)
        if mark is not None and mark[0] == self.start:
            kill_group(self.pid, number)

    def close(self) -> None:
        """Closes its files."""
        for descriptor in self.watched:
            os.close(descriptor)
        self.watched = []


class NodeState:
    """The state of one run on one node.

    Args:
        mark: of the run.
        warden: pid of the parent.

    Files go by bare names in the working directory; those of the ranks come with each request.
    """

    def __init__(self, mark: str, warden: int) -> None:
        self.mark, self.warden = mark, warden
        self.marks = [mark]
        """By which the run's processes are found: an earlier agent may have had another."""
        self.attempt = self.cleared = self.stopped = -1
        """The newest attempt that was started, cleared, stopped."""
        self.ranks: dict[int, Rank] = {}
        self.starting: dict[int, int] = {}
        """Ranks whose process is not there yet, with its generation."""
        self.store: Message | None = None
        self.mpirun: Message | None = None
        """The mpirun of this attempt or, on a node that is not the first, its daemon here."""
        self.daemon_done = -1
        """The attempt whose mpirun, or daemon of it, has ended here."""
        self.terms: Message = {"lease": 600.0, "on_disconnect": "keep", "stop_ladder": [["SIGKILL", 5.0]]}
        self.helpers: set[int] = set()
        """Pids of template and GPU watch: children that are neither ranks nor left over."""
        self.relays = False
        """Whether what ranks write goes to the supervisor, which is on another machine."""
        self.spawning = False
        """Whether ranks are being started that are not written down yet."""
        self.dirty = False

    def root(self) -> int:
        """Below which the processes of this run are: the warden, unless it was killed and its number may be another's."""
        return self.warden if os.getppid() == self.warden else os.getpid()

    def running(self) -> list[Rank]:
        """Ranks whose process has not ended."""
        return [rank for rank in self.ranks.values() if rank.status is None]

    def mpirun_lives(self) -> bool:
        """Whether there is an mpirun, or a daemon of it, and it runs."""
        return self.mpirun is not None and lives(self.mpirun["pid"], self.mpirun["start"])

    def save(self) -> None:
        """Writes down what a successor must know. The loop does so before it sends."""
        if not self.dirty:
            return
        ranks = [
            [r.number, r.pid, r.start, r.status, r.reason, r.files, r.ended_at, r.generation]
            for r in self.ranks.values()
        ]
        data = {
            "boot": boot_id(), "attempt": self.attempt, "cleared": self.cleared, "ranks": ranks, "terms": self.terms,
            "store": self.store, "mpirun": self.mpirun, "daemon_done": self.daemon_done, "spawning": self.spawning, "version": PROTOCOL, "marks": self.marks,
        }  # fmt: skip
        with contextlib.suppress(OSError):  # a full disk: tried again in the next round
            write_atomically("agent.json", json.dumps(data).encode())
            self.dirty = False

    def recall(self) -> None:
        """Adopts what an earlier agent of this run left on this node."""
        try:
            with open("agent.json") as file:
                data = json.load(file)
            is_same_boot = data["boot"] == boot_id()
        except (OSError, ValueError):
            return
        if data.get("version") != PROTOCOL:
            return
        self.attempt, self.cleared, self.terms = data["attempt"], data["cleared"], data["terms"]
        self.marks = sorted({*self.marks, *data["marks"]})
        for number, pid, start, status, reason, files, ended_at, generation in data["ranks"]:
            if status is None and not is_same_boot:
                continue
            rank = self.ranks[number] = Rank(number, files)
            rank.pid, rank.start, rank.status, rank.reason, rank.adopted = pid, start, status, reason, True
            rank.ended_at, rank.generation = ended_at, generation
        store, mpirun = data["store"], data.get("mpirun")
        if store and is_same_boot and (process_mark(store["pid"]) or (None,))[0] == store["start"]:
            self.store = store
        self.daemon_done = data.get("daemon_done", -1)
        if mpirun and is_same_boot:
            self.mpirun = mpirun
        if data["spawning"]:
            self.end_unknown()
        self.dirty = True

    def end_unknown(self) -> None:
        """Ends ranks that were started but never written down, since their agent or template died; they are started anew."""
        known = {rank.pid for rank in self.ranks.values()} | {self.store["pid"] if self.store else 0} | self.helpers
        spare = {os.getpid()}
        if self.mpirun is not None and self.mpirun_lives():  # what it starts may lead sessions of its own
            spare.update([self.mpirun["pid"], *descendants(self.mpirun["pid"], set())])
        for pid in descendants(self.root(), spare):
            try:
                if os.getsid(pid) not in known:
                    kill_quietly(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def boot_id() -> str:
    """Of the running kernel: pids of another boot mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
