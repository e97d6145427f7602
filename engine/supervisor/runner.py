"""Turns actions of the state machine into messages to agents, and what agents say into events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from typing import Any, assert_never

from engine.core import actions as act
from engine.core import events as ev
from engine.core.actions import AnyAction
from engine.core.diagnosis import is_secondary
from engine.core.events import AnyEvent
from engine.core.machine import replay, step
from engine.core.messages import ENDING
from engine.core.mpirun import mpirun_argv, mpirun_environment
from engine.core.plan import AttemptPaths, LaunchPlan, rank_argv, rank_environment
from engine.core.stacks import RankStack
from engine.core.state import Ended, RunState, rank_word
from engine.core.story import tell, tell_all
from engine.core.view import EventLine
from engine.launchers import LAUNCHERS
from engine.node import agent
from engine.paths import RunPaths
from engine.recipes import LIBRARY
from engine.supervisor.ingest import Ingest
from engine.supervisor.journal import Journal
from engine.supervisor.library import pack
from engine.supervisor.link import AgentMessage, Bridge, Link, source_size

STACKS_TIMEOUT = 5.0
"""Seconds that a node has for the stacks of its ranks."""


class Runner:
    """One run: its journal, its state, its nodes.

    Args:
        paths: of the run.
        plan: what it runs.
        journal: opened, with whatever an earlier supervisor wrote.
        bridge: to the agent of the first node, where there is one already.
    """

    def __init__(self, paths: RunPaths, plan: LaunchPlan, journal: Journal, bridge: Bridge | None = None) -> None:
        self.paths, self.plan, self.journal = paths, plan, journal
        self.changed_ranks: set[int] = set(range(plan.world_size))
        self.story: list[EventLine] = []
        self.tails: dict[int, bytes] = {}
        self.ended = asyncio.Event()
        self.state = self._replay()
        self.ingest = Ingest(paths, plan.world_size, plan.metric_patterns, self.changed_ranks.add, self._rank_joined)
        self.ingest.start_attempt(self.state.attempt)
        self._collect_tails()
        self._links: dict[str, Link] = {}
        self._bridge = bridge
        self._kills: dict[tuple[int, int], ev.KillRequested] = {}
        """The newest signal that a user sent to each (attempt, rank)."""
        self._recall_kills()
        self._stacks: dict[str, asyncio.Future[list[list[Any]]]] = {}
        """Nodes that are asked for the stacks of their ranks."""

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
                    one_fate="one mpirun is one fate" if self.plan.backend.mpi else "",
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
        self._links = {node.name: self._make_link(node.name, tasks) for node in self.plan.nodes}
        if len(self.journal.events) == 1:
            for node in self.plan.nodes:
                self._links[node.name].open()
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
        for rank, (old, new) in enumerate(zip(before.ranks, after.ranks, strict=True)):
            if old is not new:
                self.changed_ranks.add(rank)
                if rank_word(new) in ("failed", "lost") and rank not in self.tails:
                    self.tails[rank] = self.ingest.tail(rank, "err")

    def _do(self, action: AnyAction) -> None:
        match action:
            case act.OpenNode(node=node):
                self._links[node].open()
            case act.CloseNode(node=node):
                self._links[node].close()
            case act.OpenStore(node=node, attempt=attempt):
                self._open_store(node, attempt)
            case act.SpawnRanks():
                self._spawn(action)
            case act.TellRanks(node=node, attempt=attempt, number=number, news=news):
                self._links[node].send(type="tell", attempt=attempt, number=number, news=news)
            case act.StopRanks(node=node, attempt=attempt, at_once=at_once):
                self._links[node].send(type="stop", attempt=attempt, at_once=at_once)
            case act.SignalRank(node=node, attempt=attempt, rank=rank, signal=number):
                self._links[node].send(type="signal", attempt=attempt, rank=rank, signal=number)
            case act.ClearNode(node=node, attempt=attempt):
                self._links[node].send(type="clear", attempt=attempt)
            case act.Ignore():
                pass
            case _ as never:
                assert_never(never)

    def _node_folder(self, node: str) -> str:
        return str(self.paths.folder / "nodes" / node)

    def _library(self, node: str) -> str:
        return f"{self._node_folder(node)}/library/{pack(LIBRARY).name}/python"

    def _common(self, node: str) -> AgentMessage:
        return {
            "env": self.plan.env,
            "env_defaults": self.plan.env_defaults,
            "library": self._library(node),
            "warm": self.plan.warm,
        }

    def _open_store(self, node: str, attempt: int) -> None:
        argv = [self.plan.python, "-u", f"{self._library(node)}/rankdeck/store_host.py"]
        folder = self.paths.attempt(attempt)
        self._links[node].send(
            type="open_store",
            attempt=attempt,
            argv=argv,
            host=self.plan.head_address,
            log=str(folder / "store.log"),
            news=str(folder / "store.news"),
            **self._common(node),
        )

    def _spawn(self, action: act.SpawnRanks) -> None:
        folder = self.paths.attempt(action.attempt)
        library = self._library(action.node)
        ranks = []
        for rank, generation in zip(action.ranks, action.generations, strict=True):
            files = AttemptPaths(
                library=library,
                error=str(folder / f"rank_{rank}.error.json"),
                metrics=str(folder / f"rank_{rank}.metrics"),
                stacks=str(folder / f"rank_{rank}.stacks"),
                handover=str(folder / f"rank_{rank}.state"),
                checkpoints=str(self.paths.folder / "checkpoints"),
            )
            env = rank_environment(
                self.plan,
                self.plan.places[rank],
                run=self.paths.run,
                attempt=action.attempt,
                port=action.port,
                paths=files,
                generation=generation,
            )
            out, err = (str(self.paths.log(action.attempt, rank, stream)) for stream in ("out", "err"))
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
            **self._mpirun(action.node, action.attempt),
            **self._common(action.node),
        )

    def _mpirun(self, node: str, attempt: int) -> AgentMessage:
        mpi = self.plan.backend.mpi
        if mpi is None:
            return {}
        proxy = os.path.join(os.path.dirname(self._library(node)), "mpi_proxy.py")
        argv = [self.plan.python, "-I", "-S", proxy, self._node_folder(node), str(attempt)]
        return {
            "mpirun": {
                "argv": mpirun_argv(mpi, self.plan.world_size, argv),
                "env": mpirun_environment(mpi, os.geteuid()),
                "log": str(self.paths.attempt(attempt) / "mpirun.log"),
            }
        }

    # --- what agents say ----------------------------------------------------------------------------------------------

    def _make_link(self, node: str, tasks: asyncio.TaskGroup) -> Link:
        terms = {
            "lease": self.plan.lease,
            "on_disconnect": self.plan.on_disconnect,
            "stop_ladder": self.plan.stop_ladder,
        }
        return make_link(
            tasks,
            node,
            self.plan,
            {"mark": self.paths.mark, "folder": self._node_folder(node), "terms": terms},
            on_message=lambda message: self._take_message(node, message),
            on_down=lambda reason: self.handle_quietly(ev.NodeDisconnected(at=time.time(), node=node, reason=reason)),
            on_failed=lambda reason: self.handle_quietly(ev.NodeGivenUp(at=time.time(), node=node, reason=reason)),
            on_closed=lambda: self.handle_quietly(ev.NodeClosed(at=time.time(), node=node)),
            patience=self.plan.lease + 30,
            bridge=self._bridge if node == self.plan.nodes[0].name else None,
        )

    def handle_quietly(self, event: AnyEvent) -> None:
        """`handle` for whoever has no use for an answer."""
        self.handle(event)

    def _take_message(self, node: str, message: AgentMessage) -> None:
        now = time.time()
        match message["type"]:
            case "hello":
                self._greet(node, message, now)
            case "grew":
                self.ingest.take_sizes(message["attempt"], message["sizes"])
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
            case "store":
                self.handle(ev.StoreOpened(at=now, attempt=message["attempt"], node=node, port=message["port"]))
            case "store_lost":
                self.handle(ev.StoreLost(at=now, attempt=message["attempt"], reason=message["reason"]))
            case "cleared":
                abandoned = tuple(message["abandoned"])
                self.handle(ev.NodeCleared(at=now, attempt=message["attempt"], node=node, abandoned=abandoned))
            case "stacks":
                if (waiting := self._stacks.pop(node, None)) and not waiting.done():
                    waiting.set_result(message["ranks"])
            case "cold":
                note(f"{node}: ranks are started one by one, since {message['reason']}")
            case "trouble":
                self._take_trouble(node, message["request"], message["reason"], now)

    def _greet(self, node: str, message: AgentMessage, now: float) -> None:
        if not message["library"]:
            library = pack(LIBRARY)
            self._links[node].send(type="library", name=library.name, tar=library.tar)
        ranks = tuple(
            ev.KnownRank(attempt=one["attempt"], rank=one["rank"], pid=one["pid"], generation=one["generation"])
            for one in message["ranks"]
        )
        store = tuple(message["store"]) if message["store"] else None
        self.handle(ev.NodeConnected(at=now, node=node, agent_pid=message["pid"], ranks=ranks, store=store))
        for one in message["ranks"]:
            if one["status"] is not None:
                self._rank_ended(one, now)

    def _take_trouble(self, node: str, request: str, reason: str, now: float) -> None:
        """A request failed inside the agent: what waits for its answer gets one."""
        note(f"{node} could not {request}: {reason}")
        attempt = self.state.attempt
        if request in ("library", "open_store"):
            self.handle(ev.StoreLost(at=now, attempt=attempt, reason=reason))
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
        if current:
            self.ingest.catch_up()  # whether this rank, or any, can rejoin is said in what it reported
        tail = self.ingest.tail(rank, "err") if current and status != 0 else b""
        kill = self._kills.get((attempt, rank))
        self.handle(
            ev.RankEnded(
                at=now,
                attempt=attempt,
                rank=rank,
                status=status,
                step=self.ingest.last_step(rank) if current else None,
                reason=message["reason"],
                secondary=is_secondary(tail),
                by=kill.by if kill is not None and kill.signal == -status else "",
                generation=message["generation"],
            )
        )

    async def stacks(self) -> tuple[RankStack, ...]:
        """The Python stacks of every rank, within a few seconds; or why a rank has none."""
        found: dict[int, RankStack] = {}
        asked = [node for node in self.state.nodes if node.link == "up"]
        for node in asked:
            if node.name not in self._stacks:
                self._stacks[node.name] = asyncio.get_running_loop().create_future()
                self._links[node.name].send(type="stacks", attempt=self.state.attempt)
        for node in asked:
            with contextlib.suppress(TimeoutError):
                said = await asyncio.wait_for(asyncio.shield(self._stacks[node.name]), STACKS_TIMEOUT)
                found.update({rank: RankStack(rank=rank, text=text, reason=reason) for rank, text, reason in said})
            self._stacks.pop(node.name, None)
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
        for link in self._links.values():
            await link.wait_closed()


def make_link(tasks: asyncio.TaskGroup, node: str, plan: LaunchPlan, hello: AgentMessage, **callbacks: Any) -> Link:
    """A link to the agent of a node, which is booted where there is none.

    Args:
        tasks: the link's work runs in there.
        node: its name.
        plan: what is launched.
        hello: `mark`, `folder` and `terms` of the agent.
        **callbacks: of `Link`, and its patience.
    """
    first = {"type": "hello", "protocol": agent.PROTOCOL, "library": pack(LIBRARY).name, **hello}
    argv = LAUNCHERS["local"].boot_argv(node, plan.python, agent.BOOT, source_size())
    return Link(tasks, node, argv, first, **callbacks)


def note(text: str) -> None:
    """A line into the supervisor's own log."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()
