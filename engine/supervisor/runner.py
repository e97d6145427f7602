"""Turns actions of the state machine into messages to agents, and what agents say into events."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import operator
import os
import resource
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, assert_never

from engine.core.failures import ssh as connect_trouble
from engine.core.failures.collectives import Wait
from engine.core.failures.diagnosis import explain, is_secondary
from engine.core.failures.ssh import Trouble
from engine.core.failures.stacks import RankStack
from engine.core.metrics.gpu_use import GpuUse, read_use
from engine.core.plan.plan import AttemptPaths, LaunchPlan, PlannedNode, plan_on, rank_argv, rank_environment
from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.actions import AnyAction
from engine.core.run.events import AnyEvent
from engine.core.run.machine import replay, step
from engine.core.run.state import Ended, Holding, Opening, Running, RunState, Starting, rank_word
from engine.core.terminal_text import visible
from engine.core.views.story import tell, tell_all
from engine.core.views.view import EventLine
from engine.core.wire.front_end import ENDING
from engine.launchers import LAUNCHERS, rsync
from engine.node import agent
from engine.planning.recipes import LIBRARY
from engine.runs.paths import TRACE, RunPaths
from engine.runs.record import replace_file
from engine.runs.traces import read_traces
from engine.supervisor.code import pack
from engine.supervisor.early_check import look
from engine.supervisor.ingest import KINDS, Ingest
from engine.supervisor.journal import Journal
from engine.supervisor.link import (
    BOOT_TIMEOUT,
    FAN_OUT,
    SETUP_TIMEOUT,
    AgentMessage,
    Bridge,
    Link,
    boot_command,
)
from engine.supervisor.mpirun import Mpirun, MpirunFiles
from engine.supervisor.routes import WayError, find_way, interface_environment
from engine.supervisor.rsync import run_rsync

STACKS_TIMEOUT = 8.0
"""Seconds that nodes have for what their ranks are at: an agent waits 4.5 for ranks that do not answer."""

HEARTBEAT = 5.0
"""Seconds between two signs of life on a link to another machine; a lease that is shorter wants more of them."""

RELAY_RETRY = 2.0
"""Seconds after which a node is asked again for what could not be stored: a full disk, for one."""

STORE_PATIENCE = 60.0
"""Seconds that the end of a run waits for a place to store what ranks wrote; it stays on its node after that."""

SHORTEST_HEARTBEAT = 2.0
"""Below it a process that hiccups is taken for dead."""

NUMBERS = frozenset({"rank", "attempt", "pid", "status", "generation", "port", "stream", "offset", "number"})
WORDS = frozenset({"reason", "host", "folder", "state", "errors", "numbers", "request", "name", "command"})
"""What is a whole number, and what is text, in whatever an agent says."""

ACKNOWLEDGED = 1 << 16
"""Bytes from a node after which it is told that they have arrived."""

FILES_OF_LINK = 4
"""Files that a link keeps open: three pipes, and what tells of the end of its process."""

FILES = 512
"""Files that are open besides: subscribers, for one."""

WAY_TIMEOUT = 15.0
"""Seconds that nodes have to find out how they reach each other: longer than the agents' own, so that they can say why."""


class Remote(NamedTuple):
    """Where an agent on another machine is.

    `folder`: its own. `shared`: it sees the run's folder too. `state`: where files that outlive a run go, if not.
    """

    folder: str
    shared: bool
    state: str


class Runner:
    """One run: its journal, its state, its nodes.

    Args:
        paths: of the run.
        plan: what it runs.
        journal: opened, with whatever an earlier supervisor wrote.
        bridge: to the agent of the first node, where there is one already.
    """

    def __init__(self, paths: RunPaths, plan: LaunchPlan, journal: Journal, bridge: Bridge | None = None) -> None:
        self.paths, self._launched, self.journal = paths, plan, journal
        self.plan = plan
        self.changed_ranks: set[int] = set(range(plan.world_size))
        self.story: list[EventLine] = []
        self.tails: dict[int, bytes] = {}
        self.gpu_use: dict[int, GpuUse] = {}
        """The newest that is known of the ranks' GPUs."""
        self.waits: tuple[Wait, ...] = ()
        """Who waited for whom, as torch has written it down."""
        self._reading: asyncio.Task[None] | None = None
        self._read_again = False
        self.ended = asyncio.Event()
        self.state = self._replay()
        self.plan = plan_on(plan, self.state.backend)
        self.ingest = Ingest(paths, plan.world_size, plan.metric_patterns, self.changed_ranks.add, self._rank_joined)
        self.ingest.start_attempt(self.state.attempt)
        self._collect_tails()
        self._links: dict[str, Link] = {}
        self._bridge = bridge
        self._kills: dict[tuple[int, int], ev.KillRequested] = {}
        """The newest signal that a user sent to each (attempt, rank)."""
        self._recall_kills()
        self._stacks: dict[str, asyncio.Future[AgentMessage]] = {}
        """Nodes that are asked for the stacks of their ranks."""
        self._transports = {node.name: node.transport for node in plan.nodes}
        self._remotes: dict[str, Remote] = {}
        """Nodes that are other machines, once their agents have said where they are there."""
        self._gate = asyncio.Semaphore(FAN_OUT)
        self._taken: dict[str, int] = {}
        """Bytes from each node that it was not told of."""
        self._asking: dict[str, asyncio.TimerHandle] = {}
        """Nodes that are to send again what could not be stored."""
        self._questions: dict[tuple[str, str, int], asyncio.Future[AgentMessage]] = {}
        """Answers that are waited for, by node, type and number."""
        self._question_numbers = itertools.count()
        self._last_words: dict[int, bytes] = {}
        """How ranks of this attempt complained last, of whom not all was stored when that was told."""
        self._unstored: dict[str, float] = {}
        """Nodes that are cleared, and whose ranks wrote what could not be stored yet; since when."""
        self._bringing: dict[str, asyncio.Task[None]] = {}
        """Nodes to which code is being brought."""
        self._way: asyncio.Task[None] | None = None
        self._mpirun = self._new_mpirun()
        self._interfaces: tuple[tuple[str, str], ...] = ()
        """That go with the store which is being opened."""

    def _replay(self) -> RunState:
        """The state that the journal comes to, and the story so far; a new run gets its first line here."""
        if not self.journal.events:
            nodes = tuple((node.name, node.ranks) for node in self.plan.nodes)
            policy = self.plan.policy
            self.journal.append(
                ev.RunLaunched(
                    at=time.time(),
                    run=self.paths.run,
                    name=self.plan.name,
                    nodes=nodes,
                    on_failure=policy.on_failure,
                    max_restarts=policy.max_restarts,
                    one_fate=self.plan.backend.one_fate,
                    backend=self.plan.backend.name,
                    backend_note=self.plan.backend_note,
                    spares=tuple(ev.Spare(backend=spare.name, one_fate=spare.one_fate) for spare in self.plan.fallback),
                )
            )
        self.story = tell_all(self.journal.events)
        state = replay(self.journal.events)
        assert state is not None
        return state

    def _tell(self, event: AnyEvent, before: RunState | None, after: RunState) -> None:
        if line := tell(len(self.story), event, before, after):
            self.story.append(line)

    def _collect_tails(self) -> None:
        for rank, phase in enumerate(self.state.ranks):
            if rank_word(phase) in ("failed", "lost"):
                self.tails[rank] = self.ingest.tail(rank, "err")

    def _recall_kills(self) -> None:
        attempt = 0
        for event in self.journal.events:
            attempt = getattr(event, "attempt", attempt)
            if isinstance(event, ev.KillRequested):
                self._kills[attempt, event.rank] = event

    # --- events in, actions out ---------------------------------------------------------------------------------------

    def start(self, tasks: asyncio.TaskGroup, restart_by: str | None) -> None:
        """Connects to the nodes: for the first time, again after another supervisor, or anew after the run had ended.

        Args:
            tasks: the links live in there: one that raises is a defect, and ends this supervisor rather than hang it.
            restart_by: who wants a run that has ended to start again, or None.
        """
        self._tasks = tasks
        _allow_open_files(FILES + FILES_OF_LINK * len(self.plan.nodes))
        if self.tails:
            self._read_traces()
        self._links = {node.name: self._make_link(node, tasks) for node in self.plan.nodes}
        if len(self.journal.events) == 1:
            for node in self.plan.nodes:
                self._links[node.name].open(0.0)
        elif restart_by is not None and isinstance(self.state.phase, Ended):
            self.handle(ev.RestartRequested(at=time.time(), by=restart_by))
        elif isinstance(self.state.phase, Ended):
            self.ended.set()
        else:
            self.handle(ev.SupervisorStarted(at=time.time(), pid=os.getpid()))

    def handle(self, event: AnyEvent) -> str | None:
        """Takes an event in and does what follows.

        Returns:
            Why nothing follows, or None where something did.
        """
        if self.ended.is_set():
            return ENDING
        before = self.state
        state, actions = step(before, event)
        ignored = next((action.reason for action in actions if isinstance(action, act.Ignore)), None)
        if state is before and ignored is not None:
            return ignored
        try:
            self.journal.append(event, durable=isinstance(state.phase, Ended))
        except OSError as error:
            if isinstance(event, ev.INTENTS):
                raise  # nothing is done that is not written down; whoever asked is told
            note(f"not in the journal, since {error.strerror}: {event}")
        self.state = state
        self._note_changes(before, state)
        self._tell(event, before, state)
        if isinstance(event, ev.KillRequested):
            self._kills[state.attempt, event.rank] = event
        for action in actions:
            self._do(action)
        if isinstance(state.phase, Ended):
            self.ended.set()
        return None

    def _note_changes(self, before: RunState, after: RunState) -> None:
        if before.attempt != after.attempt:
            self.ingest.drain()
            self.ingest.start_attempt(after.attempt)
            self.tails.clear()
            self.gpu_use.clear()
            self.waits = ()
            self._last_words.clear()
            self._unstored.clear()
            self.plan = plan_on(self._launched, after.backend)
            self._mpirun = self._new_mpirun()
        if before.nodes is not after.nodes:
            for node, now in zip(before.nodes, after.nodes, strict=True):
                if node.link != now.link:
                    self.changed_ranks.update(now.ranks)
                    for rank in now.ranks:
                        self.gpu_use.pop(rank, None)
        if before.ranks is after.ranks:
            return
        is_changed = map(operator.is_not, before.ranks, after.ranks)  # no loop of Python's: there are thousands
        for rank in itertools.compress(itertools.count(), is_changed):
            self.changed_ranks.add(rank)
            if rank_word(after.ranks[rank]) in ("failed", "lost") and rank not in self.tails:
                self.tails[rank] = self._tail(rank)
                self._read_traces()

    def _read_traces(self) -> None:
        """Reads what torch has recorded of collectives, once more if it is being read: other ranks may have written since."""
        self._read_again = True
        if self._reading is None or self._reading.done():
            self._reading = self._tasks.create_task(self._take_traces())

    async def _take_traces(self) -> None:
        while self._read_again:
            self._read_again = False
            attempt = self.state.attempt
            traces = await asyncio.to_thread(
                read_traces, self.paths.attempt(attempt), self.plan.world_size, self.state.generation_since
            )
            if attempt == self.state.attempt and traces.waits != self.waits:
                self.waits = traces.waits
                self.changed_ranks.add(0)  # so that the picture is made anew

    def _tail(self, rank: int) -> bytes:
        """The end of what a rank complained about: as its node has told, for not all of it may be stored yet."""
        return self._last_words.get(rank) or self.ingest.tail(rank, "err")

    def _do(self, action: AnyAction) -> None:
        match action:
            case act.OpenNode(node=node, patience=patience):
                found = self.state.node(node)
                known = self.plan.lease + 30 if found is not None and found.was_up else 0.0
                self._links[node].open(known if patience is None else patience)
            case act.CloseNode(node=node):
                self._links[node].close(keep=node in self._unstored)
            case act.OpenStore(node=node, attempt=attempt):
                self._find_way(node, attempt)
            case act.SpawnRanks():
                self._spawn(action)
            case act.TellRanks(node=node, attempt=attempt, number=number, news=news):
                self._links[node].send(type="tell", attempt=attempt, number=number, news=news)
            case act.StopRanks(node=node, attempt=attempt, at_once=at_once):
                self._links[node].send(type="stop", attempt=attempt, at_once=at_once)
            case act.SignalRank(node=node, attempt=attempt, rank=rank, signal=number):
                self._links[node].send(type="signal", attempt=attempt, rank=rank, signal=number)
            case act.ClearNode(node=node, attempt=attempt, at_once=at_once):
                self._links[node].send(type="clear", attempt=attempt, at_once=at_once)
            case act.Ignore():
                pass
            case _ as never:
                assert_never(never)

    def _node_folder(self, node: str) -> str:
        """The folder of a node's agent, as the node has it."""
        if (remote := self._remotes.get(node)) is not None:
            return remote.folder
        if self._transports[node] != "local" and (known := self._known_folder(node)):
            return known  # from an earlier supervisor
        return str(self.paths.folder / "nodes" / node)

    def _attempt_folder(self, node: str, attempt: int) -> Path:
        """The folder of an attempt's files, as the node has it: only on this machine is it the run's own."""
        paths = RunPaths(Path(self._node_folder(node))) if node in self._remotes else self.paths
        return paths.attempt(attempt)

    def _library(self, node: str) -> str:
        return f"{self._node_folder(node)}/library/{pack(LIBRARY).name}/python"

    def _program(self, node: str, name: str) -> str:
        """One of the programs that come with the library, as the node has it."""
        return os.path.join(os.path.dirname(self._library(node)), name)

    def _common(self, node: str) -> AgentMessage:
        interface = dict(self.state.interfaces).get(node, "")
        return {
            "env": self.plan.env,
            "env_defaults": {
                **self.plan.env_defaults,
                **interface_environment(interface),
            },
            "library": self._library(node),
            "library_path": [self.plan.backend.library_path, self.plan.backend.library_links],
            "warm": self.plan.warm,
        }

    def _find_way(self, node: str, attempt: int) -> None:
        """Opens the store where all nodes can reach it: with one node, on its loopback interface, which nobody else can."""
        if len(self.plan.nodes) == 1:
            self._open_store(node, attempt, "127.0.0.1", ())
            return
        if self._way is not None:
            self._way.cancel()
        self._way = self._tasks.create_task(self._find_way_and_open_store(node, attempt), name="way")

    async def _find_way_and_open_store(self, head: str, attempt: int) -> None:
        others = [node.name for node in self.plan.nodes if node.name != head]
        try:
            way = await find_way(self._ask, head, others)
        except (WayError, KeyError, TypeError, ValueError) as error:
            if all(node.link == "up" for node in self.state.nodes):  # else this is done again once they are
                self.handle(ev.StoreLost(at=time.time(), attempt=attempt, reason=str(error)))
            return
        if attempt == self.state.attempt and isinstance(self.state.phase, Starting):
            self._open_store(head, attempt, way.address, way.interfaces)
            if attempt == 0:
                await self._look()

    async def _look(self) -> None:
        """Tells what would fail late on nodes, while their ranks are being started."""
        names = [node.name for node in self.plan.nodes]
        for finding in await look(self._ask, self.plan, {name: self._program(name, "probe.py") for name in names}):
            text = f"{finding.text}; {finding.advice}" if finding.advice else finding.text
            self.handle(
                ev.NodeWarned(
                    at=time.time(), node=finding.node, check=finding.check, text=text, fails=finding.state == "fail"
                )
            )

    async def _ask(self, node: str, answer: str | None, **question: Any) -> AgentMessage:
        """Asks a node's agent, and waits for its answer, if there is one, for some seconds. Raises TimeoutError."""
        number = next(self._question_numbers)
        self._links[node].send(number=number, **question)
        if answer is None:
            return {}
        waiting = self._questions[node, answer, number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(waiting, WAY_TIMEOUT)
        finally:
            del self._questions[node, answer, number]

    def _open_store(self, node: str, attempt: int, address: str, interfaces: tuple[tuple[str, str], ...]) -> None:
        argv = [self.plan.python, "-u", f"{self._library(node)}/rankdeck/store_host.py"]
        folder = self._attempt_folder(node, attempt)
        self._interfaces = interfaces
        own = dict(interfaces).get(node, "")
        common = self._common(node)
        self._links[node].send(
            type="open_store",
            attempt=attempt,
            argv=argv,
            host=address,
            log=str(folder / "store.log"),
            news=str(folder / "store.news"),
            **{**common, "env_defaults": {**common["env_defaults"], **interface_environment(own)}},
        )

    def _spawn(self, action: act.SpawnRanks) -> None:
        folder = self._attempt_folder(action.node, action.attempt)
        library = self._library(action.node)
        remote = self._remotes.get(action.node)
        checkpoints = self.paths.folder if remote is None or remote.shared else Path(remote.state) / self.paths.run
        ranks = []
        for rank, generation in zip(action.ranks, action.generations, strict=True):
            files = AttemptPaths(
                library=library,
                error=str(folder / f"rank_{rank}.error.json"),
                metrics=str(folder / f"rank_{rank}.metrics"),
                stacks=str(folder / f"rank_{rank}.stacks"),
                handover=str(folder / f"rank_{rank}.state"),
                traces=str(folder / TRACE),
                checkpoints=str(checkpoints / "checkpoints"),
            )
            env = rank_environment(
                self.plan,
                self.plan.places[rank],
                run=self.paths.run,
                attempt=action.attempt,
                address=action.address,
                port=action.port,
                paths=files,
                generation=generation,
            )
            out, err = (str(folder / f"rank_{rank}.{stream}") for stream in ("out", "err"))
            ranks.append(
                {
                    "rank": rank,
                    "generation": generation,
                    "env": env,
                    "out": out,
                    "err": err,
                    "metrics": files.metrics,
                    "stacks": files.stacks,
                }
            )
        self._links[action.node].send(
            type="spawn",
            attempt=action.attempt,
            argv=list(rank_argv(self.plan, library)),
            cwd=self.plan.workdir,
            ranks=ranks,
            **self._placed(action),
            **self._common(action.node),
        )
        self._watch_gpus(action.node)

    def _watch_gpus(self, node: str) -> None:
        """Has a node tell how its ranks use their GPUs, if they compute on any; one that does so already goes on."""
        if self.plan.backend.device != "cuda":
            return
        ranks = next(planned.ranks for planned in self.plan.nodes if planned.name == node)
        local_ranks = [str(self.plan.places[rank].local_rank) for rank in ranks]
        self._links[node].send(
            type="watch_gpus",
            attempt=self.state.attempt,
            argv=[self.plan.python, "-I", "-S", self._program(node, "gpus.py"), *local_ranks],
            ranks=ranks,
            **self._common(node),
        )

    def _placed(self, action: act.SpawnRanks) -> AgentMessage:
        """What makes ranks wait for their place in mpirun's job, where there is one."""
        if self._mpirun is None:
            return {}
        interface = dict(self.state.interfaces).get(action.node, "")
        return {"mpirun": self._mpirun.spawn(action.node, action.attempt, action.address, interface)}

    def _new_mpirun(self) -> Mpirun | None:
        """What an attempt tells agents of its mpirun, where its backend wants one."""
        mpi = self.plan.backend.mpi
        return None if mpi is None else Mpirun(mpi, self.plan, self._mpirun_files)

    def _start_daemon(self, node: str) -> None:
        """Starts mpirun's daemon, where there is to be one; what runs already is not started again."""
        attempt = self.state.attempt
        if self._mpirun is not None and (daemon := self._mpirun.daemon(node, attempt)):
            self._links[node].send(type="daemon", attempt=attempt, mpirun=daemon, **self._common(node))

    def _mpirun_ended(self, node: str, status: int, reason: str) -> None:
        """mpirun, or a daemon of its: whoever waits for it is told."""
        head, attempt = self.plan.nodes[0].name, self.state.attempt
        if node == head:
            for other in self.plan.nodes[1:]:
                self._links[other.name].send(type="mpirun_gone", attempt=attempt, reason=reason)
        elif self._mpirun is not None and (host := self._mpirun.host_of_daemon(node)):
            self._links[head].send(type="daemon_ended", attempt=attempt, host=host, status=status)

    def _mpirun_files(self, node: str, attempt: int) -> MpirunFiles:
        """What mpirun needs to know of a node."""
        log = str(self._attempt_folder(node, attempt) / "mpirun.log")
        return MpirunFiles(program=self._program(node, "mpi_proxy.py"), folder=self._node_folder(node), log=log)

    @cached_property
    def _plan_digest(self) -> str:
        """By which an agent finds out that it sees the run's folder: the file's content, since its path may be another's there."""
        return hashlib.sha256(self.paths.plan.read_bytes()).hexdigest()

    # --- what agents say ----------------------------------------------------------------------------------------------

    def _make_link(self, planned: PlannedNode, tasks: asyncio.TaskGroup) -> Link:
        node = planned.name
        heartbeat = (
            0.0 if planned.transport == "local" else max(min(HEARTBEAT, self.plan.lease / 4), SHORTEST_HEARTBEAT)
        )
        terms = {
            "lease": self.plan.lease,
            "on_disconnect": self.plan.on_disconnect,
            "stop_ladder": self.plan.stop_ladder,
            "heartbeat": heartbeat,
        }
        hello: AgentMessage = {"mark": self.paths.mark, "folder": self._node_folder(node), "terms": terms}
        if planned.transport != "local":
            mark = self.paths.node_mark(self.plan.nodes.index(planned))
            hello |= {
                "mark": mark,
                "folder": self._known_folder(node),
                "relay": True,
                "shared": [str(self.paths.plan), self._plan_digest],
            }
        return make_link(
            tasks,
            planned,
            self.plan,
            hello,
            on_message=lambda message: self._take_message(node, message),
            on_down=lambda reason: self.handle_quietly(ev.NodeDisconnected(at=time.time(), node=node, reason=reason)),
            on_failed=lambda reason: self.handle_quietly(ev.NodeGivenUp(at=time.time(), node=node, reason=reason)),
            on_closed=lambda: self.handle_quietly(ev.NodeClosed(at=time.time(), node=node)),
            gate=self._gate,
            heartbeat=heartbeat,
            boot_timeout=SETUP_TIMEOUT if self.plan.reach.setup else BOOT_TIMEOUT,
            bridge=self._bridge if node == self.plan.nodes[0].name else None,
        )

    def handle_quietly(self, event: AnyEvent) -> None:
        """`handle` for whoever has no use for an answer."""
        self.handle(event)

    def _take_message(self, node: str, message: AgentMessage) -> None:
        """Raises KeyError, TypeError or ValueError for what makes no sense."""
        now = time.time()
        self._check(node, message)
        match message["type"]:
            case "hello":
                self._greet(node, message, now)
            case "pong":
                pass
            case "data":
                self._take_data(node, message)
            case "grew" if node not in self._remotes:
                self.ingest.take_sizes(message["attempt"], message["sizes"])
            case "gpus":
                self._take_gpu_use(node, message)
            case "spawned":
                self.handle(
                    ev.RankSpawned(
                        at=now,
                        attempt=message["attempt"],
                        rank=message["rank"],
                        pid=message["pid"],
                        generation=message["generation"],
                    )
                )
            case "ended":
                self._rank_ended(message, now)
            case "lost":
                self.handle(
                    ev.RankLost(
                        at=now,
                        attempt=message["attempt"],
                        rank=message["rank"],
                        reason=message["reason"],
                        generation=message["generation"],
                    )
                )
            case "store" if node == self.plan.nodes[0].name:
                self.handle(
                    ev.StoreOpened(
                        at=now,
                        attempt=message["attempt"],
                        node=node,
                        address=message["host"],
                        port=message["port"],
                        interfaces=self._interfaces,
                    )
                )
            case "store_lost":
                self.handle(ev.StoreLost(at=now, attempt=message["attempt"], reason=message["reason"]))
            case "cleared":
                self._take_cleared(node, message, now)
            case "daemon" if self._mpirun is not None and node == self.plan.nodes[0].name:
                is_on = isinstance(self.state.phase, Starting | Running | Holding)
                if is_on and message["attempt"] == self.state.attempt:
                    self._start_daemon(self._mpirun.take_daemon(message["host"], message["command"]))
            case "daemon_ended":
                if message["attempt"] == self.state.attempt:
                    self._mpirun_ended(node, message["status"], message["reason"])
            case "stacks":
                if (waiting := self._stacks.pop(node, None)) and not waiting.done():
                    waiting.set_result(message)
            case "cold":
                note(f"{node}: ranks are started one by one, since {message['reason']}")
            case "door" | "knocked" | "interface" | "folder" | "probed" as kind:
                asked = self._questions.get((node, kind, message["number"]))
                if asked is not None and not asked.done():
                    asked.set_result(message)
            case "trouble":
                self._take_trouble(node, message["request"], message["reason"], now)

    def _take_data(self, node: str, message: AgentMessage) -> None:
        """What a rank of another machine wrote: stored as it is, where its file would be on this one."""
        self._taken[node] = self._taken.get(node, 0) + len(message["data"])
        if self._taken[node] >= ACKNOWLEDGED:
            self._links[node].send(type="stored", size=self._taken.pop(node))
        rank = message["rank"]
        if message["attempt"] != self.ingest.attempt:
            return
        if not 0 <= message["stream"] < len(KINDS):
            raise ValueError(f"there is no stream {message['stream']!r}")
        try:
            is_next = self.ingest.take_data(rank, message["stream"], message["offset"], message["data"])
        except OSError as error:
            note(f"can't store what rank {rank} wrote: {error.strerror}")
            is_next = False
        if not is_next and node not in self._asking:
            self._asking[node] = asyncio.get_running_loop().call_later(RELAY_RETRY, self._ask_for_data, node)

    def _take_gpu_use(self, node: str, message: AgentMessage) -> None:
        if message["attempt"] != self.state.attempt:
            return
        for rank, *said in message["ranks"]:
            self._check(node, {"rank": rank})
            use = read_use(said)
            if use == self.gpu_use.get(rank):
                continue
            self.changed_ranks.add(rank)
            if use is None:
                del self.gpu_use[rank]
            else:
                self.gpu_use[rank] = use

    def _take_cleared(self, node: str, message: AgentMessage, now: float) -> None:
        """Believes that a node is cleared once all is stored that its ranks have written: its files go away next."""
        attempt, abandoned = message["attempt"], tuple(message["abandoned"])
        missing = (
            node in self._remotes
            and attempt == self.ingest.attempt
            and any(self.ingest.stored_sizes(rank) != sizes for rank, *sizes in message["sizes"])
        )
        if missing and now - self._unstored.setdefault(node, now) < STORE_PATIENCE and not message["at_once"]:
            asyncio.get_running_loop().call_later(RELAY_RETRY, self._clear_again, node, attempt)
            return
        if missing:
            note(f"{node}: not all that its ranks wrote could be stored; it stays in {self._node_folder(node)}")
        else:
            self._unstored.pop(node, None)
        self.handle(ev.NodeCleared(at=now, attempt=attempt, node=node, abandoned=abandoned))

    def _clear_again(self, node: str, attempt: int) -> None:
        self._ask_for_data(node)
        self._links[node].send(type="clear", attempt=attempt)

    def _ask_for_data(self, node: str) -> None:
        """Asks for what ranks write, from where it is stored."""
        if (asking := self._asking.pop(node, None)) is not None:
            asking.cancel()
        offsets = [
            [rank, *self.ingest.stored_sizes(rank)]
            for planned in self.plan.nodes
            if planned.name == node
            for rank in planned.ranks
        ]
        self.ingest.take_sizes(self.ingest.attempt, offsets)
        self._taken.pop(node, None)
        self._links[node].send(type="relay", attempt=self.ingest.attempt, offsets=offsets)

    def _known_folder(self, node: str) -> str:
        """Where the agent of another machine has its files, if it ever said so; empty: it chooses."""
        try:
            return (self.paths.folder / "nodes" / node / "where").read_text()
        except OSError:
            return ""

    def _remember_folder(self, node: str, folder: str) -> None:
        """For the next connection: a login may have another temporary folder, and would not find the agent."""
        self._links[node].hello["folder"] = folder
        where = self.paths.folder / "nodes" / node / "where"
        with contextlib.suppress(OSError):
            where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(where, folder.encode())

    def _greet(self, node: str, message: AgentMessage, now: float) -> None:
        if self._transports[node] != "local":
            folder, state = message["folder"], message["state"]
            if not (os.path.isabs(folder) and os.path.isabs(state)):
                raise ValueError(f"{folder!r} and {state!r} are no folders")
            self._remotes[node] = Remote(folder, message["shared"] is True, state)
            self._remember_folder(node, folder)
            self._ask_for_data(node)
            self._stop_bringing(node)
            if self.plan.sync == "rsync" and isinstance(self.state.phase, Opening):
                self._bringing[node] = self._tasks.create_task(self._bring_code(node, message), name=f"rsync {node}")
                return
        self._take_inventory(node, message, now)

    async def _bring_code(self, node: str, message: AgentMessage) -> None:
        """Brings the working directory to a node before anything starts there."""
        try:
            made = await self._ask(node, "folder", type="make_folder", path=self.plan.workdir)
            trouble = str(made.get("reason", ""))
            if not trouble:
                async with self._gate:
                    trouble = await run_rsync(rsync.argv(node, self.plan.workdir, self.plan.reach))
            if not trouble:
                self._take_inventory(node, message, time.time())
                return
        except TimeoutError:
            trouble = "it did not answer"
        except (OSError, KeyError, TypeError, ValueError) as error:
            trouble = f"{type(error).__name__}: {error}"
        self._links[node].close()
        reason = f"{self.plan.workdir} could not be brought there: {trouble}"
        self.handle(ev.NodeGivenUp(at=time.time(), node=node, reason=reason))

    def _stop_bringing(self, node: str) -> None:
        if (task := self._bringing.pop(node, None)) is not None:
            task.cancel()

    def _check(self, node: str, said: AgentMessage) -> None:
        """A node speaks for its own ranks only, in numbers and words: what it says goes into the journal, and onto screens."""
        for name, value in said.items():
            if name in NUMBERS and not (type(value) is int and abs(value) < 1 << 53):
                raise ValueError(f"{name} is {value!r}")
            if name in WORDS and not isinstance(value, str):
                raise ValueError(f"{name} is {value!r}")
        rank = said.get("rank")
        if rank is not None and not (0 <= rank < self.plan.world_size and self.plan.places[rank].node == node):
            raise ValueError(f"rank {rank} is not on {node}")

    def _take_inventory(self, node: str, message: AgentMessage, now: float) -> None:
        for one in message["ranks"]:
            self._check(node, one if one["status"] is not None else {**one, "status": 0})
        hosted = [self.state.attempt, self.state.store_port]
        if node == self.plan.nodes[0].name and self.state.store_port is not None and message["store"] != hosted:
            self.handle(ev.StoreLost(at=now, attempt=self.state.attempt, reason="it ended with its agent"))
        if not message["library"]:
            library = pack(LIBRARY)
            self._links[node].send(type="library", name=library.name, tar=library.tar)
        ranks = tuple(
            ev.KnownRank(attempt=one["attempt"], rank=one["rank"], pid=one["pid"], generation=one["generation"])
            for one in message["ranks"]
        )
        self.handle(ev.NodeConnected(at=now, node=node, agent_pid=message["pid"], ranks=ranks))
        self._start_daemon(node)
        self._watch_gpus(node)
        for one in message["ranks"]:
            if one["status"] is not None:
                self._rank_ended(one, now)

    def _take_trouble(self, node: str, request: str, reason: str, now: float) -> None:
        """A request failed inside the agent: what waits for its answer gets one."""
        note(f"{node} could not {request}: {reason}")
        attempt = self.state.attempt
        if request in ("library", "open_store"):
            self.handle(ev.StoreLost(at=now, attempt=attempt, reason=reason))
        elif request == "daemon":
            self._mpirun_ended(node, 1, reason)
        elif request == "spawn":
            for planned in self.plan.nodes:
                for rank in planned.ranks if planned.name == node else ():
                    generation = self.state.generation_of(rank)
                    self.handle(
                        ev.RankEnded(
                            at=now, attempt=attempt, rank=rank, status=126, reason=reason, generation=generation
                        )
                    )

    def _rank_ended(self, message: AgentMessage, now: float) -> None:
        attempt, rank, status = message["attempt"], message["rank"], message["status"]
        current = attempt == self.ingest.attempt
        numbers = message.get("numbers", "").encode()
        if current:
            self.ingest.catch_up()  # whether this rank, or any, can rejoin is said in what it reported
        if current and "errors" in message:
            self._last_words[rank] = message["errors"].encode()
        tail = self._tail(rank) if current and status != 0 else b""
        forming = ""
        may_matter = self.state.spares and isinstance(self.state.phase, Starting | Running | Holding)
        if may_matter and current and status != 0:
            unplaced = self._mpirun is not None and message["reason"].startswith("mpirun")
            if unplaced or self.ingest.is_joining(rank, numbers):
                said = explain(rank, status, tail, message["reason"])
                forming = visible(said.detail or said.headline)
        kill = self._kills.get((attempt, rank))
        self.handle(
            ev.RankEnded(
                at=now,
                attempt=attempt,
                rank=rank,
                status=status,
                step=self.ingest.last_step(rank, numbers) if current else None,
                reason=message["reason"],
                secondary=is_secondary(tail),
                by=kill.by if kill is not None and kill.signal == -status else "",
                forming=forming,
                generation=message["generation"],
            )
        )

    async def stacks(self) -> tuple[RankStack, ...]:
        """The Python stacks and the collectives of every rank, within a few seconds; or why a rank has none."""
        found: dict[int, RankStack] = {}
        asked: dict[str, asyncio.Future[AgentMessage]] = {}
        for node in self.state.nodes:
            if node.link != "up":
                continue
            if node.name not in self._stacks:
                self._stacks[node.name] = asyncio.get_running_loop().create_future()
                self._links[node.name].send(type="stacks", attempt=self.state.attempt)
            asked[node.name] = self._stacks[node.name]
        if asked:
            await asyncio.wait(asked.values(), timeout=STACKS_TIMEOUT)
        for name, answer in asked.items():
            if not answer.done():
                if self._stacks.get(name) is answer:  # another who asks may have given it up already
                    del self._stacks[name]
                continue
            said = answer.result()
            collectives = dict(said.get("collectives", ()))  # an agent may be older than this supervisor
            for rank, text, reason in said["ranks"]:
                told = collectives.get(rank, "")
                found[rank] = RankStack(rank=rank, text=text, reason=reason, collectives=told)
        words = {rank: rank_word(phase) for rank, phase in enumerate(self.state.ranks)}
        missing = {
            rank: "its node does not answer" if word == "running" else f"it has no process: {word}"
            for rank, word in words.items()
            if rank not in found
        }
        found.update({rank: RankStack(rank=rank, reason=reason) for rank, reason in missing.items()})
        return tuple(found[rank] for rank in sorted(found))

    def _rank_joined(self, rank: int, generation: int, at_step: int | None) -> None:
        self.handle(
            ev.RankJoined(at=time.time(), attempt=self.ingest.attempt, rank=rank, generation=generation, step=at_step)
        )

    async def wait_closed(self) -> None:
        """Returns when no link runs any more."""
        for task in (*self._bringing.values(), *([self._way] if self._way is not None else [])):
            task.cancel()
        for link in self._links.values():
            await link.wait_closed()


def make_link(tasks: asyncio.TaskGroup, node: PlannedNode, plan: LaunchPlan, hello: AgentMessage, **more: Any) -> Link:
    """A link to the agent of a node, which is booted where there is none.

    Args:
        tasks: the link's work runs in there.
        node: of the plan.
        plan: what is launched.
        hello: `mark`, `folder` and `terms` of the agent.
        **more: arguments of `Link`.
    """
    first = {"type": "hello", "protocol": agent.PROTOCOL, "library": pack(LIBRARY).name, **hello}
    argv = LAUNCHERS[node.transport].argv(node.name, boot_command(plan.python), plan.reach)

    def explain(status: int | None, said: str) -> Trouble:
        return connect_trouble.explain(
            node.name, status=status, said=said, python=plan.python, setup=bool(plan.reach.setup)
        )

    return Link(tasks, node.name, argv, first, explain=explain, **more)


def _allow_open_files(count: int) -> None:
    """Lets this process have so many files open at one time, as far as the system does; most systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def note(text: str) -> None:
    """A line into the supervisor's own log. A disk that is full has none for it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        sys.stderr.flush()
