"""Turns actions of the state machine into messages to agents, and what agents say into events."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import assert_never

from engine.core import actions as act
from engine.core import events as ev
from engine.core.actions import AnyAction
from engine.core.diagnosis import is_secondary
from engine.core.events import AnyEvent
from engine.core.machine import replay, step
from engine.core.messages import ENDING
from engine.core.plan import AttemptPaths, LaunchPlan, rank_argv, rank_environment
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
from engine.supervisor.link import AgentMessage, Link, source_size


class Runner:
    """One run: its journal, its state, its nodes.

    Args:
        paths: of the run.
        plan: what it runs.
        journal: opened, with whatever an earlier supervisor wrote.
    """

    def __init__(self, paths: RunPaths, plan: LaunchPlan, journal: Journal) -> None:
        self.paths, self.plan, self.journal = paths, plan, journal
        self.changed_ranks: set[int] = set(range(plan.world_size))
        self.story: list[EventLine] = []
        self.tails: dict[int, bytes] = {}
        self.ended = asyncio.Event()
        self.state = self._replay()
        self.ingest = Ingest(paths, plan.world_size, plan.metric_patterns, self.changed_ranks.add)
        self.ingest.start_attempt(self.state.attempt)
        self._collect_tails()
        self._links: dict[str, Link] = {}
        self._kills: dict[tuple[int, int], ev.KillRequested] = {}
        """The newest signal that a user sent to each (attempt, rank)."""
        self._recall_kills()

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
        return f"{self._node_folder(node)}/library/{pack(LIBRARY).name}"

    def _common(self, node: str) -> AgentMessage:
        return {"env": self.plan.env, "env_defaults": self.plan.env_defaults, "library": self._library(node)}

    def _open_store(self, node: str, attempt: int) -> None:
        argv = [self.plan.python, "-u", f"{self._library(node)}/rankdeck/store_host.py"]
        log = str(self.paths.attempt(attempt) / "store.log")
        self._links[node].send(
            type="open_store", attempt=attempt, argv=argv, host=self.plan.head_address, log=log, **self._common(node)
        )

    def _spawn(self, action: act.SpawnRanks) -> None:
        folder = self.paths.attempt(action.attempt)
        library = self._library(action.node)
        ranks = []
        for rank in action.ranks:
            files = AttemptPaths(
                library=library,
                error=str(folder / f"rank_{rank}.error.json"),
                metrics=str(folder / f"rank_{rank}.metrics"),
                checkpoints=str(self.paths.folder / "checkpoints"),
            )
            env = rank_environment(
                self.plan,
                self.plan.places[rank],
                run=self.paths.run,
                attempt=action.attempt,
                port=action.port,
                paths=files,
            )
            out, err = (str(self.paths.log(action.attempt, rank, stream)) for stream in ("out", "err"))
            ranks.append({"rank": rank, "env": env, "out": out, "err": err, "metrics": files.metrics})
        self._links[action.node].send(
            type="spawn",
            attempt=action.attempt,
            argv=list(rank_argv(self.plan, library)),
            cwd=self.plan.workdir,
            ranks=ranks,
            **self._common(action.node),
        )

    # --- what agents say ----------------------------------------------------------------------------------------------

    def _make_link(self, node: str, tasks: asyncio.TaskGroup) -> Link:
        terms = {
            "lease": self.plan.lease,
            "on_disconnect": self.plan.on_disconnect,
            "stop_ladder": self.plan.stop_ladder,
        }
        hello = {
            "type": "hello",
            "protocol": agent.PROTOCOL,
            "mark": self.paths.mark,
            "folder": self._node_folder(node),
            "terms": terms,
            "library": pack(LIBRARY).name,
        }
        return Link(
            tasks,
            node,
            LAUNCHERS["local"].boot_argv(node, self.plan.python, agent.BOOT, source_size()),
            hello,
            on_message=lambda message: self._take_message(node, message),
            on_down=lambda reason: self.handle_quietly(ev.NodeDisconnected(at=time.time(), node=node, reason=reason)),
            on_failed=lambda reason: self.handle_quietly(ev.NodeGivenUp(at=time.time(), node=node, reason=reason)),
            on_closed=lambda: self.handle_quietly(ev.NodeClosed(at=time.time(), node=node)),
            patience=self.plan.lease + 30,
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
                    ev.RankSpawned(at=now, attempt=message["attempt"], rank=message["rank"], pid=message["pid"])
                )
            case "ended":
                self._rank_ended(message, now)
            case "lost":
                self.handle(
                    ev.RankLost(at=now, attempt=message["attempt"], rank=message["rank"], reason=message["reason"])
                )
            case "store":
                self.handle(ev.StoreOpened(at=now, attempt=message["attempt"], node=node, port=message["port"]))
            case "store_lost":
                self.handle(ev.StoreLost(at=now, attempt=message["attempt"], reason=message["reason"]))
            case "cleared":
                abandoned = tuple(message["abandoned"])
                self.handle(ev.NodeCleared(at=now, attempt=message["attempt"], node=node, abandoned=abandoned))
            case "trouble":
                self._take_trouble(node, message["request"], message["reason"], now)

    def _greet(self, node: str, message: AgentMessage, now: float) -> None:
        if not message["library"]:
            library = pack(LIBRARY)
            self._links[node].send(type="library", name=library.name, tar=library.tar)
        ranks = tuple(
            ev.KnownRank(attempt=one["attempt"], rank=one["rank"], pid=one["pid"]) for one in message["ranks"]
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
                    self.handle(ev.RankEnded(at=now, attempt=attempt, rank=rank, status=126, reason=reason))

    def _rank_ended(self, message: AgentMessage, now: float) -> None:
        attempt, rank, status = message["attempt"], message["rank"], message["status"]
        current = attempt == self.ingest.attempt
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
            )
        )

    async def wait_closed(self) -> None:
        """Returns when no link runs any more."""
        for link in self._links.values():
            await link.wait_closed()


def note(text: str) -> None:
    """A line into the supervisor's own log."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()
