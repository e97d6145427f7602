"""Turns actions of the state machine into requests to agents."""

import asyncio
import os
import time
from typing import Any, assert_never

from engine.core.plan.rank import AttemptPaths, differs_between_ranks, rank_argv, rank_environment, unset_variables
from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.actions import AnyAction
from engine.core.run.moves import spawn, up_nodes
from engine.core.run.requests import idle_since
from engine.core.run.state import Holding, Running, Starting
from engine.core.wire import agent_requests as requests
from engine.supervisor.nodes.agents import Agents
from engine.supervisor.nodes.mpirun import Mpirun
from engine.supervisor.nodes.questions import NoRouteError, Questions, check_early, find_routes, interface_environment
from engine.supervisor.nodes.relay import Relay
from engine.supervisor.nodes.store_keys import StoreKeys
from engine.supervisor.run import SupervisedRun

HEAD_PAUSE = 1.0  # seconds between two searches for a node's interface while the link to the head node is down
RECONNECT_MARGIN = 30.0  # seconds beyond the lease in which a node that was connected before is tried again


class Orders:
    """Requests to the agents of a run."""

    def __init__(self, run: SupervisedRun, agents: Agents, questions: Questions, relay: Relay) -> None:
        self._run, self._agents, self._questions, self._relay = run, agents, questions, relay
        self.mpirun = Mpirun(run, agents, self._of_processes)
        self._store_keys = StoreKeys(run.paths)
        self._routes: asyncio.Task[None] | None = None
        """The task that finds the address of the store; None: none is needed."""
        self.store_interfaces: tuple[tuple[str, str], ...] = ()
        """Interfaces by which nodes reach the store that is being opened."""
        self._spare_interfaces: dict[str, str] = {}
        """Those of spare nodes, which were not there when the store was opened."""

    def stop(self) -> None:
        if self._routes is not None:
            self._routes.cancel()

    def do(self, action: AnyAction) -> None:
        links = self._agents.links
        match action:
            case act.OpenNode(node=node, patience=patience):
                known = self._run.plan.launch.lease + RECONNECT_MARGIN if self._run.state.node(node).was_up else 0.0
                self._agents.links[node].open(known if patience is None else patience)
            case act.CloseNode(node=node):
                self._agents.links[node].close(keep=node in self._relay.unstored)
            case act.OpenStore(node=node, attempt=attempt):
                self._open_store_by_route(node, attempt)
            case act.SpawnRanks():
                self._spawn_by_route(action)
            case act.TellRanks(node=node, attempt=attempt, number=number, news=news):
                signed = self._store_keys.signed(attempt, number, news, self._run.plan.world_size)
                links[node].send(requests.TellRanks(attempt=attempt, number=number, news=signed))
            case act.StopRanks(node=node, attempt=attempt, at_once=at_once):
                links[node].send(requests.Stop(attempt=attempt, at_once=at_once))
            case act.SignalRank(node=node, attempt=attempt, rank=rank, signal=number):
                links[node].send(requests.SignalRank(attempt=attempt, rank=rank, signal=number))
            case act.ClearNode(node=node, attempt=attempt, at_once=at_once):
                links[node].send(requests.Clear(attempt=attempt, at_once=at_once))
            case act.Ignore():
                pass
            case _ as never:
                assert_never(never)

    # --- the store ----------------------------------------------------------------------------------------------------

    def _open_store_by_route(self, node: str, attempt: int) -> None:
        """Opens the store where all nodes can reach it; with one node, on its loopback interface, which no other machine reaches."""
        if len(self._run.plan.nodes) == 1:
            self._open_store(node, attempt, "127.0.0.1", ())
            return
        if self._routes is not None:
            self._routes.cancel()
        self._routes = self._run.tasks.create_task(self._find_routes(node, attempt), name="routes")

    async def _find_routes(self, head: str, attempt: int) -> None:
        run = self._run
        others = [node.name for node in run.plan.nodes if node.name != head]
        try:
            routes = await find_routes(self._questions, head, others)
        except NoRouteError as error:
            if all(
                node.link == "up" for node in run.state.nodes
            ):  # otherwise the search is repeated when all nodes are up
                self._run.handle(ev.StoreLost(at=time.time(), attempt=attempt, reason=str(error)))
            return
        if attempt == run.state.attempt and isinstance(run.state.phase, Starting):
            self._open_store(head, attempt, routes.address, routes.interfaces)
            if attempt:
                return
            # Problems of nodes that would otherwise appear late are reported while their ranks are started.
            probes = {node.name: self._agents.program(node.name, "probe.py") for node in run.plan.nodes}
            for finding in await check_early(self._questions, run.plan, probes):
                text = f"{finding.text}; {finding.hint}" if finding.hint else finding.text
                run.warn(finding.node, finding.check, text, fails=finding.state == "fail")

    def _open_store(self, node: str, attempt: int, address: str, interfaces: tuple[tuple[str, str], ...]) -> None:
        files, library = self._agents.paths(node), self._agents.library(node)
        self.store_interfaces = interfaces
        self._store_keys.make(attempt)
        plan = self._run.plan
        self._agents.links[node].send(
            requests.OpenStore(
                attempt=attempt,
                argv=(*plan.rank_python, "-u", f"{library}/rankdeck/store_host.py"),
                host=address,
                log=str(files.store_log(attempt)),
                news=str(files.store_news(attempt)),
                **self._of_processes(node, dict(interfaces).get(node, "")),
                preload=plan.preload,
            ),
        )

    # --- ranks --------------------------------------------------------------------------------------------------------

    def _defaults(self, node: str, store_interface: str = "") -> dict[str, str]:
        """Returns environment variables that apply if the node does not set them."""
        own = interface_environment(self._interface(node))
        return {**self._run.plan.env_defaults, **own, **interface_environment(store_interface)}

    def _interface(self, node: str) -> str:
        """Returns the interface of a node towards the others; empty: unknown."""
        return dict(self._run.state.interfaces).get(node, self._spare_interfaces.get(node, ""))

    def _of_processes(self, node: str, store_interface: str = "") -> dict[str, Any]:
        """The fields of `ProcessRequest` that are the same for all processes of a node; see `_defaults`."""
        plan, backend = self._run.plan, self._run.plan.backend
        return {
            "env": plan.env,
            "env_defaults": self._defaults(node, store_interface),
            "library": self._agents.library(node),
            "library_path": (backend.library_path, backend.library_links),
            "warm": plan.launch.warm,
            "user_template": self._agents.user_template,
            "linger": plan.linger,
        }

    def _spawn_by_route(self, action: act.SpawnRanks) -> None:
        """Starts ranks. If a node was not there when the store was opened, finds its interface first."""
        known = dict(self._run.state.interfaces)
        if not known or action.node in known or action.node in self._spare_interfaces:
            self._spawn(action)
            return
        task = self._spawn_when_found(action.node, action.attempt, action.address)
        self._run.tasks.create_task(task, name=f"route of {action.node}")

    async def _spawn_when_found(self, node: str, attempt: int, address: str) -> None:
        """Finds the interface of a node, then starts those of its ranks that still wait."""
        run, trouble = self._run, ""
        while attempt == run.state.attempt and isinstance(run.state.phase, Starting | Running | Holding):
            try:
                routes = await find_routes(self._questions, run.head, [node], address)
                self._spare_interfaces[node] = dict(routes.interfaces)[node]
                trouble = ""
            except NoRouteError as error:
                trouble = str(error)
            up = {one.name for one in up_nodes(run.state)}
            if node not in up:
                return  # it is repeated when the node is up
            if not trouble or run.head in up:
                break
            await asyncio.sleep(HEAD_PAUSE)
        if attempt != run.state.attempt or not isinstance(run.state.phase, Starting | Running | Holding):
            return
        for action in spawn(run.state, run.state.node(node)):
            if isinstance(action, act.SpawnRanks) and trouble:
                self._fail(action, trouble)
            elif isinstance(action, act.SpawnRanks):
                self._spawn(action)

    def _fail(self, action: act.SpawnRanks, reason: str) -> None:
        """Reports that ranks could not be started."""
        for rank, generation in zip(action.ranks, action.generations, strict=True):
            now, attempt = time.time(), action.attempt
            event = ev.RankEnded(at=now, attempt=attempt, rank=rank, status=126, reason=reason, generation=generation)
            self._run.handle(event)

    def _spawn(self, action: act.SpawnRanks) -> None:
        plan, node = self._run.plan, action.node
        library, bind = self._agents.library(node), plan.layout.bind
        gpus, count = plan.backend.device == "cuda", len(self._run.ranks_of(node))
        binding = None if bind == "none" else requests.Binding(bind=bind, count=count, gpus=gpus)
        placement = self.mpirun.placement(node, action.attempt, action.address, self._interface(node))
        self._agents.links[node].send(
            requests.Spawn(
                attempt=action.attempt,
                argv=rank_argv(plan, library),
                cwd=plan.workdir,
                ranks=tuple(
                    self._rank_to_spawn(action, rank, generation)
                    for rank, generation in zip(action.ranks, action.generations, strict=True)
                ),
                mpirun=None if any(action.generations) else placement,
                binding=binding,
                **self._of_processes(node),
                preload=plan.preload,
            ),
        )
        self.watch_gpus(node)

    def _rank_to_spawn(self, action: act.SpawnRanks, rank: int, generation: int) -> requests.RankToSpawn:
        plan, attempt = self._run.plan, action.attempt
        files = self._agents.paths(action.node)
        paths = AttemptPaths(
            library=self._agents.library(action.node),
            error=str(files.rank_file(attempt, rank, "error.json")),
            metrics=str(files.metrics(attempt, rank)),
            stacks=str(files.rank_file(attempt, rank, "stacks")),
            handover=str(files.rank_file(attempt, rank, "state")),
            traces=str(files.traces(attempt)),
            checkpoints=str(self._agents.checkpoints(action.node)),
        )
        env = rank_environment(
            plan,
            plan.places[rank],
            run=self._run.paths.run,
            attempt=attempt,
            address=action.address,
            port=action.port,
            paths=paths,
            generation=generation,
            store_key=self._store_keys.of(attempt),
            in_slurm=self._agents.is_in_slurm(action.node),
        )
        return requests.RankToSpawn(
            rank=rank,
            generation=generation,
            env=env,
            out=str(files.log(attempt, rank, "out")),
            err=str(files.log(attempt, rank, "err")),
            argv=rank_argv(plan, paths.library, plan.places[rank], os.path.dirname(paths.checkpoints))
            if differs_between_ranks(plan)
            else (),
            unset=unset_variables(plan),
            metrics=paths.metrics,
            stacks=paths.stacks,
            local_rank=plan.places[rank].local_rank,
            begins=self._relay.stored_sizes(rank) if action.node in self._run.launched.spare_names else (),
        )

    def keep_warm(self, node: str) -> None:
        """Has a node import torch before a rank has to rejoin there, if its agent is new and has no template yet."""
        run = self._run
        if (
            not run.plan.launch.warm
            or run.state.store_port is None
            or idle_since(run.state) is not None
            or not isinstance(run.state.phase, Starting | Running | Holding)
        ):
            return
        self._agents.links[node].send(
            requests.WarmTemplate(
                argv=(run.plan.python,), **self._of_processes(node), preload=run.plan.preload, spares=0
            ),
        )

    def let_go(self) -> None:
        """Ends what waits on the nodes for ranks, as long as no rank lives."""
        for node in up_nodes(self._run.state):
            self._agents.links[node.name].send(requests.LetGo(attempt=self._run.state.attempt))

    def watch_gpus(self, node: str) -> None:
        """Makes a node report the GPU use of its ranks, if they compute on GPUs. A repeated request changes nothing."""
        plan = self._run.plan
        if plan.backend.device != "cuda":
            return
        ranks = self._run.ranks_of(node)
        local_ranks = (str(plan.places[rank].local_rank) for rank in ranks)
        self._agents.links[node].send(
            requests.WatchGpus(
                attempt=self._run.state.attempt,
                argv=(plan.node_python, "-I", "-S", self._agents.program(node, "gpus.py"), *local_ranks),
                ranks=ranks,
                **self._of_processes(node),
            ),
        )
