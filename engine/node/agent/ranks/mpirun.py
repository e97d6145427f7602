"""mpirun, or its daemon on nodes other than the first; and its processes, each of which holds the place of one rank."""

from __future__ import annotations

import contextlib
import os
import pwd
import selectors
import signal
import socket
import time
from collections.abc import Callable

from engine.linux.processes import kill_group, start_process, start_time
from engine.node.agent.files import close_all, first_words, open_log
from engine.node.agent.ranks.jobs import environment_of
from engine.node.agent.state import NodeState
from engine.node.agent.wire import Message

BATCH_OWN = ("SLURM_", "PBS_", "LSB_", "COBALT_", "PE_HOSTFILE")
"""Prefixes of variables by which mpirun would find nodes that are not in the plan."""

MPIRUN_GRACE = 2.0  # seconds for mpirun to end after its processes; in the second half it gets SIGTERM

ABORT_GRACE = 1.0
"""Seconds for a rank that has called MPI_Abort to end, and so report its status, before the ranks of its job are killed."""


class Mpirun:
    """Starts mpirun, gives its processes' places to ranks, and ends it."""

    def __init__(self, state: NodeState, selector: selectors.BaseSelector, send: Callable[..., None]) -> None:
        self._state, self._selector, self.send = state, selector, send
        self._launchers: dict[str, tuple[socket.socket, str]] = {}
        """Processes that mpirun has started instead of an `ssh` to another node, with the command, by mpirun's name of the node."""
        self._proxies: dict[int, socket.socket] = {}
        """Processes of mpirun, by the rank whose place they hold."""
        self._waiting: dict[int, tuple[Callable[[dict[str, str], list[int]], None], Callable[[int, str], None]]] = {}
        """Ranks that wait for a place: what starts each, and what ends it if there is no place."""
        self._doomed: dict[int, float] = {}
        """Ranks whose process of mpirun has ended, and the time when they are killed."""
        self._again: Callable[[], None] | None = None
        """Starts mpirun a second time; None: that was done, or is not wanted."""
        self._child = 0
        """The mpirun that this process has started, and whose status `reaped` gets."""

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def wait_for_place(
        self, number: int, take_place: Callable[[dict[str, str], list[int]], None], end: Callable[[int, str], None]
    ) -> None:
        """Keeps a rank until a process of mpirun offers its place. `take_place`: starts it, with environment and descriptors from mpirun.
        `end`: called with a status and a reason if it gets no place."""
        self._waiting[number] = take_place, end

    # starting

    def start_for_ranks(self, wanted: Message, environment: dict[str, str]) -> None:
        """Starts mpirun if ranks wait and this is the node that starts it."""
        if self._waiting and wanted["argv"]:
            self._again = lambda: self._start_mpirun(wanted, environment)
            self._start_mpirun(wanted, environment)

    def start_daemon(self, message: Message) -> None:
        """`daemon`: starts mpirun's daemon, which starts mpirun's processes on this node; once in an attempt."""
        attempt, wanted = message["attempt"], message["mpirun"]
        if attempt != self._state.attempt or attempt <= max(self._state.cleared, self._state.stopped):
            return
        if self._state.daemon_done == attempt:
            self.send(type="daemon_ended", attempt=attempt, status=0, reason="")
            return
        # The command is for the login shell that ssh would have started.
        login_shell = pwd.getpwuid(os.geteuid()).pw_shell
        wanted["argv"] = [login_shell if login_shell.endswith("csh") else "sh", "-c", wanted["command"]]
        self._start_mpirun(wanted, environment_of(message, self._state.mark))

    def _start_mpirun(self, wanted: Message, environment: dict[str, str]) -> None:
        """Starts it, unless it runs for this attempt."""
        state = self._state
        if state.mpirun is not None and state.mpirun["attempt"] == state.attempt:
            return
        try:
            if "launcher" in wanted:
                with open("launcher", "w") as file:  # in mpirun's working directory
                    file.write(wanted["launcher"])
            os.makedirs(os.path.dirname(wanted["log"]), mode=0o700, exist_ok=True)
            with open_log(wanted["log"]) as log:
                own = {name: value for name, value in environment.items() if not name.startswith(BATCH_OWN)}
                if state.relays:  # on the node's own disk, so that files which MPI leaves are removed with this folder
                    own["TMPDIR"] = os.path.abspath("temporary")
                    os.makedirs(own["TMPDIR"], mode=0o700, exist_ok=True)
                pid = start_process(wanted["argv"], env={**own, **wanted["env"]}, stdout=log, stderr=log)
        except OSError as error:
            reason = f"can't start {wanted['argv'][0]}: {error.strerror}"
            self.end_waiting(127, reason)
            self.send(type="daemon_ended", attempt=state.attempt, status=1, reason=reason)
            return
        self._child = pid
        state.mpirun = {"attempt": state.attempt, "pid": pid, "start": start_time(pid)}
        state.mpirun.update(log=wanted["log"], name=wanted["name"])
        state.dirty = True

    # on other nodes

    def take_launcher(self, wire: socket.socket, message: Message) -> bool:
        """Takes a process that mpirun has started instead of an `ssh`: asks the supervisor to run its command on that node. Returns whether
        the connection is kept."""
        host = message["host"]
        if message["attempt"] != self._state.attempt or host in self._launchers:
            return False
        self._launchers[host] = wire, message["command"]
        self._selector.register(wire, selectors.EVENT_READ, lambda: self._release_launcher(host, b""))
        self._ask_for_daemon(host)
        return True

    def ask_for_daemons(self) -> None:
        """Asks a new supervisor for the daemons that mpirun waits for."""
        for host in self._launchers:
            self._ask_for_daemon(host)

    def _ask_for_daemon(self, host: str) -> None:
        command = self._launchers[host][1]
        self.send(type="daemon", attempt=self._state.attempt, host=host, command=command)

    def daemon_ended(self, message: Message) -> None:
        """`daemon_ended`: tells mpirun that its daemon on another node has ended."""
        if message["attempt"] == self._state.attempt:
            self._release_launcher(message["host"], b"1" if message["status"] else b"0")

    def _release_launcher(self, host: str, answer: bytes) -> None:
        wire, _ = self._launchers.pop(host, (None, None))
        if wire is not None:
            self._part(wire, answer)

    def _part(self, wire: socket.socket, answer: bytes) -> None:
        """Closes the connection of a process of mpirun, which exits with the answer as its status."""
        self._selector.unregister(wire)
        with contextlib.suppress(OSError):
            wire.send(answer)
        wire.close()

    # places

    def take_proxy(self, wire: socket.socket, descriptors: list[int], message: Message) -> bool:
        """Takes a process of mpirun that offers its place, or registers again after this agent has replaced another. Returns whether the
        connection is kept; if not, the process tries again."""
        state, number = self._state, message["rank"]
        rank, is_current = state.ranks.get(number), message["attempt"] == state.attempt
        wanted = self._waiting.pop(number, None) if is_current else None
        if wanted is None and (not is_current or rank is None or rank.status is not None):
            return False
        old = self._proxies.get(number)
        if old is not None:
            self._selector.unregister(old)
            old.close()
        self._proxies[number] = wire
        self._selector.register(wire, selectors.EVENT_READ, lambda: self._lose_proxy(number, wire))
        if wanted is None:
            close_all(descriptors)
        else:
            wanted[0](message["env"], descriptors)
        return True

    def _lose_proxy(self, number: int, wire: socket.socket) -> None:
        """Ends the rank of a lost process: MPI_Abort was called, or mpirun was told to stop."""
        if self._proxies.get(number) is wire:  # otherwise it was released in the same round of the loop
            self._selector.unregister(wire)
            wire.close()
            del self._proxies[number]
            self._doomed[number] = time.monotonic() + ABORT_GRACE

    def drop_proxies(self, answer: bytes = b"") -> None:
        """Closes the connections of all processes that hold places."""
        for wire in self._proxies.values():
            self._part(wire, answer)
        self._proxies = {}

    # ending

    def watch(self) -> None:
        """Kills ranks that outlive their process of mpirun, and notices the end of an mpirun that is not a child of this process."""
        state = self._state
        for number, deadline in list(self._doomed.items()):
            rank = state.ranks.get(number)
            if number not in state.starting and (rank is None or rank.status is not None):
                del self._doomed[number]
            elif rank is not None and not rank.generation and time.monotonic() > deadline:
                rank.signal(signal.SIGKILL)
        if state.mpirun is not None and state.mpirun["pid"] != self._child and not state.mpirun_lives():
            self._ended("ended")

    def reaped(self, status: int) -> None:
        """Handles the status of mpirun.

        If mpirun ended by itself before it had started anything, it is started once more: Open MPI 5 fails with "The PMIx server's listener
        thread failed to start" where an mpirun that was killed, and had the same process number, has left its folder in TMPDIR.
        """
        again, self._again = self._again, None
        state, mpirun = self._state, self._state.mpirun
        is_current = mpirun is not None and mpirun["attempt"] == state.attempt > max(state.cleared, state.stopped)
        has_started_nothing = self._waiting.keys() == state.starting.keys() and not self._launchers
        if again is not None and status > 0 and is_current and has_started_nothing:
            state.mpirun = None
            again()
            return
        self._ended(f"was ended by signal {-status}" if status < 0 else "ended")

    def _ended(self, how: str) -> None:
        """Ends ranks that mpirun has not started, and dooms those that it has."""
        state = self._state
        mpirun, state.mpirun, state.dirty = state.mpirun, None, True
        if mpirun is not None and mpirun["attempt"] == state.attempt:
            state.daemon_done = state.attempt
            status, reason = (1 if self._waiting else 0), f"{mpirun['name']} {how}: {first_words(mpirun['log'])}"
            self.end_waiting(1, reason)
            self.send(type="daemon_ended", attempt=state.attempt, status=status, reason=reason)
            for number in {*state.ranks, *state.starting}:
                self._doomed.setdefault(number, time.monotonic() + ABORT_GRACE)

    def mpirun_gone(self, message: Message) -> None:
        """`mpirun_gone`: ends ranks that wait, because without mpirun they get no place."""
        if message["attempt"] == self._state.attempt:
            self.end_waiting(1, message["reason"])

    def end_waiting(self, status: int, reason: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, end in waiting.values():
            end(status, reason)

    def end(self) -> None:
        """Waits for mpirun to remove its temporary files, which it leaves if it is killed. Blocks for at most MPIRUN_GRACE."""
        self.drop_proxies(b"0")
        for host in list(self._launchers):
            self._release_launcher(host, b"0")
        self._doomed.clear()
        deadline = time.monotonic() + MPIRUN_GRACE
        asked = False
        while self._state.mpirun is not None and self._state.mpirun_lives() and time.monotonic() < deadline:
            if not asked and time.monotonic() > deadline - MPIRUN_GRACE / 2:
                asked = True
                kill_group(self._state.mpirun["pid"], signal.SIGTERM)
            time.sleep(0.01)
