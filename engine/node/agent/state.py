"""State that the parts of an agent share. State that a successor needs is written to `agent.json` before any message about that state is sent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable

from engine.linux.files import replace_file
from engine.linux.processes import (
    all_children,
    below,
    boot_id,
    kill_group,
    kill_quietly,
    lives,
    marked,
    process_status,
    signal_process,
)
from engine.node.agent.files import open_watched
from engine.node.agent.wire import PROTOCOL, Message

STACKS_SIGNAL = signal.SIGRTMIN + 9  # makes a rank write its stacks; as in `template.py` and the rank package

UNKNOWN_LOOKS = 100
"""Most looks for unrecorded ranks; each ends what it finds. A dying template may have forked one that the first look does not see."""


class Rank:
    """A rank's process. `files`: paths of its standard output, standard error and metrics."""

    def __init__(self, number: int, files: list[str]) -> None:
        self.number, self.files = number, files
        self.pid = self.start = self.generation = 0
        self.status: int | None = None
        """None while it runs."""
        self.ended_at = 0.0
        self.adopted = False
        """Whether its parent is another process: the template or the warden."""
        self.handles_stop = False
        """Whether its program had a handler for SIGTERM when it was told to stop."""
        self.told_to_stop = False
        """Whether it was signalled to stop, before it was ending by itself."""
        self.reason = ""
        self.parent = 0
        """Pid of the parent of an adopted rank; 0: not seen yet."""
        self.missing_since: float | None = None
        self.watched: list[int] = []
        with contextlib.suppress(OSError):  # if the folder was removed, sizes are unknown and the rank continues
            for path in files:
                self.watched.append(open_watched(path))
        self.sizes = [0] * len(files)
        self.sent = [0] * len(files)
        """Bytes of each file that were sent."""

    def path(self, kind: str) -> str:
        """Returns the path of another file beside those."""
        return self.files[2][: -len("metrics")] + kind

    def signal(self, number: int) -> None:
        """Signals its process group, if its number still belongs to it. A rank that a template has just forked leads no group yet."""
        found = process_status(self.pid)
        if found is not None and found[0] == self.start:
            with contextlib.suppress(ProcessLookupError):
                (kill_group if os.getpgid(self.pid) == self.pid else kill_quietly)(self.pid, number)

    def close(self) -> None:
        for descriptor in self.watched:
            os.close(descriptor)
        self.watched = []


class NodeState:
    """The state of one run on one node. `mark`: identifies the run's processes. `warden`: pid of the parent.

    Paths without a folder are relative to the working directory, the run's folder on this node; requests contain the ranks' paths.
    """

    def __init__(self, mark: str, warden: int) -> None:
        self.mark, self.warden = mark, warden
        self.marks = [mark]
        """Marks of the run's processes, because an earlier agent may have had another."""
        self.attempt = self.cleared = self.stopped = -1
        """The newest attempt that was started, cleared, stopped."""
        self.ranks: dict[int, Rank] = {}
        self.starting: dict[int, int] = {}
        """Ranks without a process yet, with their generation."""
        self.store: Message | None = None
        self.mpirun: Message | None = None
        """mpirun of this attempt, or its daemon on this node."""
        self.daemon_done = -1
        """The attempt whose mpirun or daemon has ended here."""
        self.terms: Message = {
            "lease": 600.0,
            "on_disconnect": "keep",
            "stop_ladder": [["SIGKILL", 5.0]],
            "stop_patience": 0.0,
        }
        self.helpers: set[int] = set()
        """Pids of children that are not ranks, and may stay: the GPU watch."""
        self.templates: dict[int, int] = {}
        """Templates of this run and their start times: parents of ranks, which reap them and write down how they end."""
        self.user_template = (0, 0)
        """Pid and start time of the process that has forked the newest template. If that template is killed, this process reaps its ranks."""
        self.bridge = (0, 0)
        """Pid and start time of the bridge that has connected last."""
        self.relays = False
        """Whether the output of ranks is sent to a supervisor on another machine."""
        self.places: Message = {}
        """Where this attempt may keep checkpoints, and when it began: see `checkpoints.find`."""
        self.written: list[str] = []
        """Files of checkpoints that ranks had open for writing."""
        self.spawning = False
        """Whether ranks are being started that are not recorded yet."""
        self.dirty = False

    def root(self) -> int:
        """Returns the root of this run's processes: the warden, unless it was killed and its number may belong to another process."""
        return self.warden if os.getppid() == self.warden else os.getpid()

    def kept(self) -> set[int]:
        """Returns the pids of our processes that outlive an attempt, besides the agent and its parents."""
        return {*self.helpers, *self.templates}

    def running(self) -> list[Rank]:
        """Returns ranks that have not ended."""
        return [rank for rank in self.ranks.values() if rank.status is None]

    def note_written(self, paths: Iterable[str]) -> None:
        """Remembers files of checkpoints that ranks write, the newest 64."""
        self.written = [*dict.fromkeys((*self.written, *paths))][-64:]

    def mpirun_lives(self) -> bool:
        return self.mpirun is not None and lives(self.mpirun["pid"], self.mpirun["start"])

    def save(self) -> None:
        """Writes the state that a successor needs. The loop does so before it sends messages."""
        if not self.dirty:
            return
        ranks = [
            [r.number, r.pid, r.start, r.status, r.reason, r.files, r.ended_at, r.generation]
            for r in self.ranks.values()
        ]
        data = {
            "boot": boot_id(), "attempt": self.attempt, "cleared": self.cleared, "ranks": ranks, "terms": self.terms,
            "store": self.store, "mpirun": self.mpirun, "daemon_done": self.daemon_done, "spawning": self.spawning, "places": self.places, "version": PROTOCOL, "marks": self.marks,
            "bridge": self.bridge, "templates": list(self.templates.items()), "user_template": self.user_template,
        }  # fmt: skip
        with contextlib.suppress(OSError):  # full disk: the next round tries again
            replace_file("agent.json", json.dumps(data).encode())
            self.dirty = False

    def recall(self) -> None:
        """Adopts ranks, store and mpirun of an earlier agent of this run."""
        try:
            with open("agent.json") as file:
                data = json.load(file)
            is_same_boot = data["boot"] == boot_id()
        except (OSError, ValueError):
            return
        if data.get("version") != PROTOCOL:
            return
        self.attempt, self.cleared, self.terms = data["attempt"], data["cleared"], data["terms"]
        self.places = data["places"]
        self.marks = sorted({*self.marks, *data["marks"]})
        for number, pid, start, status, reason, files, ended_at, generation in data["ranks"]:
            if status is None and not is_same_boot:
                continue
            rank = self.ranks[number] = Rank(number, files)
            rank.pid, rank.start, rank.status, rank.reason, rank.adopted = pid, start, status, reason, True
            rank.ended_at, rank.generation = ended_at, generation
            rank.told_to_stop = True  # an earlier agent may have done so
        if is_same_boot:
            store, self.mpirun = data["store"], data["mpirun"]
            if store and (process_status(store["pid"]) or (None,))[0] == store["start"]:
                self.store = store
            self.bridge = tuple(data["bridge"])
            self.templates = {pid: start for pid, start in data["templates"] if lives(pid, start)}
            self.user_template = tuple(data["user_template"])
        self.daemon_done = data["daemon_done"]
        if data["spawning"]:
            self.end_unknown()
        self.dirty = True

    def end_unknown(self) -> None:
        """Ends ranks that were started but not recorded, because their agent or template died. They are started again.

        First ends the templates, which may still fork one. The other ranks have another parent then, which notes how they end too.
        """
        for pid, start in self.templates.items():
            signal_process(pid, start, signal.SIGKILL)
        self.templates = {}
        known = {rank.pid for rank in self.ranks.values()} | {self.store["pid"] if self.store else 0} | self.helpers

        def is_unknown(pid: int) -> bool:
            try:
                return os.getsid(pid) not in known
            except ProcessLookupError:
                return False

        for _ in range(UNKNOWN_LOOKS):
            children, keep = all_children(), {os.getpid()}
            owners = [rank.pid for rank in self.running()]
            if self.mpirun is not None and self.mpirun_lives():
                owners.append(self.mpirun["pid"])
            for pid in owners:  # what they have started may lead sessions of its own
                keep.update([pid, *below(pid, children, set())])
            tops = [self.root(), *marked(self.marks)]  # the template of the user may have become their parent
            unknown = {
                pid for top in tops for pid in [top, *below(top, children, keep)] if pid not in keep and is_unknown(pid)
            }
            if not unknown:
                break
            for pid in unknown:
                kill_quietly(pid, signal.SIGKILL)
            time.sleep(0.01)
