"""The agent's process: its parts, the table of requests, and the event loop."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

from engine.linux.files import replace_file
from engine.linux.processes import StoppedWatch, kill_group, lives, next_zombie, reap, signal_process, sweep
from engine.node.agent.files import has_library, is_same_file, size_of, unpack_library
from engine.node.agent.folders import KEEP_FILE, TITLE_SIGNAL, keep_young, note_title, show_role
from engine.node.agent.link import Link, PendingConnection
from engine.node.agent.probes import Listener, Probes
from engine.node.agent.ranks.checkpoints import Checkpoints
from engine.node.agent.ranks.ending import Ending
from engine.node.agent.ranks.jobs import Room
from engine.node.agent.ranks.mpirun import Mpirun
from engine.node.agent.ranks.relay import Relay
from engine.node.agent.ranks.spawn import Spawner
from engine.node.agent.ranks.stacks import Stacks
from engine.node.agent.ranks.store import Store
from engine.node.agent.ranks.templates import Templates
from engine.node.agent.ranks.usage import GpuWatch, Usage
from engine.node.agent.state import NodeState
from engine.node.agent.wire import PROTOCOL, Any, Message
from engine.node.limits import allow_open_files, open_files, processes_left
from engine.node.login import ends_with_login
from engine.node.torch_files import search_path, torch_versions

POLL_INTERVAL = 0.05  # Seconds between two looks at the ranks' files. For 64 ranks they take under 1 % of a core.
LAST_SEND_TIME = 2.0  # seconds to send the last messages before the agent ends
CHECK_INTERVAL = 1.0  # seconds between two checks for stopped processes, and whether others can find this agent
KEEP_YOUNG_INTERVAL = 3600.0  # seconds after which files of a run in a temporary folder are marked as used again
SWEEP_TIME = 5.0  # seconds for killed processes to disappear


class Agent:
    """Owns the ranks of one run on one node. `warden`: pid of its parent."""

    def __init__(self, listener: socket.socket, warden: int, mark: str) -> None:
        self.state = state = NodeState(mark, warden)
        self.selector = selector = selectors.DefaultSelector()
        self.leaving: float | None = None
        """Time of its end, whether or not its last messages are sent."""
        self.link = Link(state, selector, listener, self._handle, self._take_process, lambda: self.relay.stop())
        self.send = send = self.link.send
        self.relay = Relay(state, send, lambda: self.link.is_up)
        self.templates = Templates(state, selector, send, self._process_ended)
        self.mpirun = Mpirun(state, selector, send)
        self.room = Room(send, self._handle)
        self.store = Store(state, send, self.templates.start, self.room)
        self.ending = Ending(state, send, self.relay.rank_ended, self._drop_waiting)
        self.checkpoints = Checkpoints(state, self.relay.send_after_output)
        self.spawner = Spawner(state, send, self.templates.start, self.mpirun, self._begin_attempt, self.room)
        self.stacks = Stacks(state, send)
        self.probes = Probes(state, send)
        self.gpu_watch = GpuWatch(state, selector, send)
        self.usage = Usage(state, send, lambda: self.link.is_up and self.link.is_idle)
        self.listener = Listener(selector, send)
        self.stopped_watch = StoppedWatch()
        self.kept_young, self.next_check = time.monotonic(), 0.0
        self.requests: dict[Any, Callable[[Message], None]] = {
            "hello": self._greet,
            "ping": self._answer_ping,
            "library": unpack_library,
            "relay": self.relay.start_relay,
            "stored": self.relay.stored,
            "open_store": self.store.open_store,
            "tell": self.store.tell,
            "warm": self.templates.warm,
            "let_go": self._let_go,
            "spawn": self.spawner.spawn,
            "daemon": self.mpirun.start_daemon,
            "daemon_ended": self.mpirun.daemon_ended,
            "mpirun_gone": self.mpirun.mpirun_gone,
            "signal": self.ending.signal_rank,
            "stop": self.ending.stop_ranks,
            "clear": self._clear_attempt,
            "close": self._close_agent,
            "stacks": self.stacks.ask_stacks,
            "probe": self.probes.start_probe,
            "make_folder": self.probes.make_folder,
            "watch_gpus": self.gpu_watch.watch_gpus,
            "open_door": self.listener.open_port,
            "close_door": self.listener.close_port,
            "knock": self.listener.try_node,
            "name_interface": self.listener.name_interface,
        }

    def run(self, *, again: bool) -> int:
        """Serves until it is told to close, or its lease ends. `again`: replaces an agent that was killed, and may have moved its socket.
        Returns the exit status, for the warden."""
        allow_open_files()
        state = self.state
        if again:
            self.link.listen_anew()
        state.recall()
        self.store.adopt()
        wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_in)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.link.listen()
        self.selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, 4096))
        state.save()
        next_tick = 0.0
        while self.leaving is None or (not self.link.is_idle and self.link.is_up and time.monotonic() < self.leaving):
            hurry = self.relay.can_send_more and self.link.is_idle
            for key, _ in self.selector.select(0.0 if hurry else max(0.0, next_tick - time.monotonic())):
                key.data()
            self.ending.tell_signal()
            self._reap()
            if hurry and state.relays:
                self.relay.go_on()
            if time.monotonic() >= next_tick:
                self._tick()
                next_tick = time.monotonic() + POLL_INTERVAL
            if state.spawning and not self.mpirun.has_waiting and not self.templates.is_busy:
                state.spawning, state.dirty = False, True  # a successor need not look for unknown ranks
            state.save()
            self.link.flush()
        return 0

    def _tick(self) -> None:
        if self.leaving is None and time.monotonic() >= self.next_check:
            self.next_check = time.monotonic() + CHECK_INTERVAL
            self._keep_reachable()
        self.ending.watch_adopted()
        self.store.watch()
        self.mpirun.watch()
        self.ending.walk_ladder()
        self.room.look()
        self.checkpoints.watch()
        self.stacks.collect()
        self.gpu_watch.notice_silence()
        self.usage.look()
        if self.link.is_up:
            if self.link.is_idle:  # sizes are absolute, so a slow link can skip some
                self.relay.look_for_growth()
            self.link.drop_if_silent()
        elif self.leaving is None:
            alone, terms = self.link.alone, self.state.terms
            if (terms["on_disconnect"] == "stop" and alone > 1) or alone > terms["lease"]:
                self._stop_alone()

    def _keep_reachable(self) -> None:
        """Ends processes that a signal has stopped, and listens again if the socket is gone."""
        state = self.state
        state.templates = {pid: start for pid, start in state.templates.items() if lives(pid, start)}
        watched = state.kept()  # what follows the end of a stopped one is the same as when it is killed
        if lives(*state.user_template):
            watched.add(state.user_template[0])
        if state.store is not None and lives(state.store["pid"], state.store["start"]):
            watched.add(state.store["pid"])
        if os.getppid() == state.warden:
            watched.add(state.warden)
        self.stopped_watch.look(watched)
        if state.terms.get("heartbeat"):  # it is temporary
            if not os.stat(".").st_nlink:
                self._stop_alone()  # the folder on this node was removed, so nobody can find this agent
                return
            if time.monotonic() - self.kept_young > KEEP_YOUNG_INTERVAL:
                self.kept_young = time.monotonic()
                keep_young(".")
        self.link.keep_listening()

    def _stop_alone(self) -> None:
        """Ends the ranks, then this agent, without a supervisor's request."""
        if not self.state.running():
            self._leave()
        elif not self.ending.is_stopping:
            self.ending.start_ladder(at_once=False)

    def _leave(self) -> None:
        """Ends everything, then this agent after its last messages or LAST_SEND_TIME."""
        self._clear(self.state.attempt)  # not for the next agent, whose ranks may rejoin this attempt
        self.templates.end_all()
        self.leaving = time.monotonic() + LAST_SEND_TIME
        self.link.stop_listening()

    # requests

    def _handle(self, message: Any) -> None:
        """Handles a request. Reports any error instead of ending, because ranks must not lose their agent over, say, a full disk."""
        kind = message.get("type") if isinstance(message, dict) else message
        try:
            self.requests[kind](message)
        except Exception as error:  # noqa: BLE001
            self.send(type="trouble", request=str(kind), reason=f"{type(error).__name__}: {error}")

    def _take_process(self, pending: PendingConnection, message: Message) -> None:
        mpirun, wire = self.mpirun, pending.wire
        is_proxy = message["type"] == "proxy"
        if not (
            mpirun.take_proxy(wire, pending.descriptors, message) if is_proxy else mpirun.take_launcher(wire, message)
        ):
            pending.close()

    def _greet(self, message: Message) -> None:
        """`hello`: reports the state to a supervisor that has connected."""
        if message["protocol"] != PROTOCOL:
            reason = "this node's agent speaks protocol {}, not {}".format(PROTOCOL, message["protocol"])
            self.send(type="refused", reason=reason)
            return
        state, relays = self.state, message.get("relay")
        if note_title(message["title"]):
            self._change_titles()
        state.terms, state.dirty = message["terms"], True
        ranks = [
            {
                "attempt": state.attempt,
                "rank": r.number,
                "pid": r.pid,
                "status": r.status,
                "reason": r.reason,
                "generation": r.generation,
                **(self.relay.last_words(r) if relays else {}),
            }
            for r in sorted(state.ranks.values(), key=lambda rank: rank.ended_at)  # the first to end may be the cause
        ]
        self.send(
            type="hello",
            pid=os.getpid(),
            warden=state.warden,
            python="{}.{}.{}".format(*sys.version_info[:3]),
            torch=torch_versions(search_path())[0],
            ranks=ranks,
            store=[state.store["attempt"], state.store["port"]] if state.store else None,
            library=has_library(message["library"]),
            folder=os.getcwd(),
            shared=is_same_file(message.get("shared")),
            state=os.path.expanduser("~/.local/state/rankdeck"),
            open_files=open_files(),
            processes=None if ranks else processes_left(),
            ends_with=ends_with_login(),
        )
        for rank in state.ranks.values():
            rank.sizes = [0] * len(rank.sizes)
        if not relays:
            self.relay.report_growth()
        self.mpirun.ask_for_daemons()

    def _change_titles(self) -> None:
        """Shows another run: a launch has taken this agent, which was a standby's, with its warden and its bridge."""
        show_role("agent")
        pid, start = self.state.bridge
        signal_process(pid, start, TITLE_SIGNAL)
        if os.getppid() == self.state.warden:
            os.kill(self.state.warden, TITLE_SIGNAL)

    def _answer_ping(self, message: Message) -> None:
        """`ping`: answers, which shows that the connection works."""
        self.send(type="pong")

    def _clear_attempt(self, message: Message) -> None:
        """`clear`: ends everything that is left of an attempt."""
        self.state.cleared = max(self.state.cleared, message["attempt"])
        self._clear(message["attempt"], at_once=message.get("at_once", False), looks=True)

    def _let_go(self, message: Message) -> None:
        """`let_go`: ends the processes that an attempt without ranks keeps in memory."""
        if message["attempt"] == self.state.attempt and not self.state.running() and not self.state.spawning:
            self.templates.end()
            self.store.end()

    def _close_agent(self, message: Message) -> None:
        """`close`: ends this agent."""
        if message.get("keep"):
            replace_file(KEEP_FILE, b"")
        self._leave()

    def _clear(self, attempt: int, *, at_once: bool = False, looks: bool = False) -> None:
        """Ends everything that is left of an attempt: ranks, child processes outside their groups, the store. `at_once`: reports it before
        the remaining output of ranks is sent. `looks`: first looks for checkpoints."""
        state = self.state
        self.ending.forget_ladder()
        self._drop_waiting()
        self.templates.end_if_forking()
        self.mpirun.end()
        self.gpu_watch.end()
        left = sweep(state.root(), {os.getpid(), *state.kept()}, state.marks, SWEEP_TIME)
        state.store = state.mpirun = None
        state.dirty = True
        for rank in state.running():
            if rank.pid not in left:
                rank.status = -signal.SIGKILL
        sizes = [[one.number, *map(size_of, one.watched)] for one in state.ranks.values() if attempt == state.attempt]
        send = self.send if at_once else self.relay.send_after_output
        report = partial(send, type="cleared", attempt=attempt, abandoned=left, sizes=sizes, at_once=at_once)
        if looks and not at_once and attempt == state.attempt:
            self.checkpoints.look(self.ending.told_at, report)
        else:
            report()

    # processes

    def _begin_attempt(self) -> None:
        self.ending.forget_ladder()
        self.ending.told_at = 0.0
        self.mpirun.drop_proxies()

    def _drop_waiting(self) -> None:
        self.templates.drop_waiting()
        self.mpirun.end_waiting(-signal.SIGKILL, "stopped before it had started")
        for message in self.room.drop(max(self.state.cleared, self.state.stopped)):
            self.spawner.drop(message)

    def _reap(self) -> None:
        while True:
            pid = next_zombie()
            if pid is None:
                return
            store = self.state.store
            if any(rank.pid == pid for rank in self.state.ranks.values()) or (store and store["pid"] == pid):
                kill_group(pid, signal.SIGKILL)
            self._process_ended(pid, reap(pid))

    def _process_ended(self, pid: int, status: int) -> None:
        """Handles the end of a process that was reaped here or by the template."""
        rank = next((rank for rank in self.state.running() if rank.pid == pid), None)
        if rank is not None:
            self.ending.ended(rank, status)
        elif self.state.mpirun is not None and self.state.mpirun["pid"] == pid:
            self.mpirun.reaped(status)
        else:
            self.probes.ended(pid)
            self.checkpoints.ended(pid)
            self.store.ended(pid, status)
