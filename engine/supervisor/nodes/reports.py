"""Turns reports of agents into events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import assert_never

import msgspec

from engine.core.checks.node_findings import limit_finding, login_finding, rank_capacity
from engine.core.errors import RankdeckError
from engine.core.failures.diagnosis import explain, is_secondary, why_again
from engine.core.failures.store import store_words
from engine.core.metrics.resources import process_use, read_use, values_of_gpu, values_of_process
from engine.core.plan.needs import lack_of
from engine.core.plan.plan import LaunchPlan
from engine.core.run import events as ev
from engine.core.run.rejoin import is_forming
from engine.core.run.state import Holding, Opening, Pending, Running, Starting
from engine.core.terminal_text import visible
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.installed import LIBRARY
from engine.node.limits import cpu_limit, memory_limit, process_limits
from engine.runs.imports import remember_refusal
from engine.supervisor.log import note
from engine.supervisor.nodes.agents import Agents
from engine.supervisor.nodes.code import CodeCopies
from engine.supervisor.nodes.library import pack
from engine.supervisor.nodes.orders import Orders
from engine.supervisor.nodes.questions import Questions
from engine.supervisor.nodes.relay import Relay
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun

REPORT_TIME = 0.5
"""Seconds in which the reports of ranks arrive, also from other nodes."""


RankEnd = reports.EndReported | reports.RankListed
"""The end of a rank, as its agent reports it at once or after a connection."""


class Reports:
    """Handles the reports of a run's agents."""

    def __init__(
        self,
        run: SupervisedRun,
        agents: Agents,
        ingest: Ingest,
        relay: Relay,
        questions: Questions,
        orders: Orders,
        copies: CodeCopies,
    ) -> None:
        self._run, self._agents, self._ingest, self._relay = run, agents, ingest, relay
        self._questions, self._orders, self._copies = questions, orders, copies
        self._failed: set[str] = set()
        """Kinds of reports whose handling has failed."""

    def take(self, node: str, news: reports.AnyReport) -> None:
        """Handles a report. A defect in this costs the connection, because the node reports again what it has when the next one begins;
        if reports of the same kind fail again, they are left out.

        Raises:
            ValueError: the report is invalid, or its handling has failed for the first time.
        """
        kind = type(news).__name__
        try:
            self._take(node, news)
        except ValueError:
            raise
        except Exception as error:
            if kind not in self._failed:
                self._failed.add(kind)
                raise ValueError(f"{kind} was not handled: {type(error).__name__}: {error}") from error
            with contextlib.suppress(Exception):  # the defect may be there
                self._run.take_failed_reading(node, f"reports of the kind {kind} are left out", error)

    def _take(self, node: str, news: reports.AnyReport) -> None:
        if isinstance(news, reports.RankMessage):
            self._run.check_rank(node, news.rank)
        match news:
            case reports.Hello():
                self._take_hello(node, news)
            case reports.SpawnReported() | reports.EndReported() | reports.LossReported():
                self._take_rank(news)
            case reports.RankOutput():
                self._relay.take_output(node, news)
            case reports.FilesGrew():
                self._take_growth(node, news)
            case reports.GpusUsed():
                self._take_gpu_use(node, news)
            case reports.RanksUsed():
                self._take_process_use(node, news)
            case reports.StoreReported():
                self._take_store(node, news)
            case reports.StoreLossReported():
                self._take_lost_store(news)
            case reports.AttemptCleared():
                self._relay.take_cleared(node, news)
            case reports.DaemonWanted():
                self._orders.take_daemon(node, news)
            case reports.MpirunEnded(attempt=attempt, status=status, reason=reason):
                if attempt == self._run.state.attempt:
                    self._orders.take_mpirun_end(node, status, reason)
            case reports.StacksTaken():
                self._questions.take_stacks(node, news)
            case (
                reports.ListenerOpened()
                | reports.AddressesTried()
                | reports.InterfaceNamed()
                | reports.FolderMade()
                | reports.ProbeAnswered()
            ):
                self._questions.take_answer(node, news)
            case reports.TemplateRefused(reason=reason):
                note(f"{node}: ranks are started without a template: {reason}")
            case reports.ImportsReported():
                self._take_imports(node, news)
            case reports.NoRoom():
                self._take_no_room(node, news)
            case reports.RequestFailed():
                self._take_failed_request(node, news)
            case reports.Pong() | reports.Refused() | reports.BridgeEnded():  # handled by the link
                pass
            case _ as never:
                assert_never(never)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _take_hello(self, node: str, hello: reports.Hello) -> None:
        if self._agents.is_elsewhere(node):
            self._agents.learn_remote(node, hello)
            self._relay.ask_for_output(node)
            self._copies.stop(node)
            if self._run.plan.launch.sync == "rsync" and isinstance(self._run.state.phase, Opening):
                self._copies.start(node, lambda: self._take_inventory(node, hello))
                return
        self._take_inventory(node, hello)

    def _take_inventory(self, node: str, hello: reports.Hello) -> None:
        now, state = time.time(), self._run.state
        for known in hello.ranks:
            self._run.check_rank(node, known.rank)
        if isinstance(state.phase, Opening) and not hello.ranks:
            if reason := self._why_unfit(node, hello):
                self._agents.links[node].close()
                self._run.handle(ev.NodeGivenUp(at=now, node=node, reason=reason))
                return
            self._warn_of_login(node, hello)
            self._warn_of_limits(node)
        if node == self._run.head and state.store_port is not None and hello.store != (state.attempt, state.store_port):
            self._take_lost_store(reports.StoreLossReported(attempt=state.attempt, reason="it ended with its agent"))
        if not hello.library:
            library = pack(LIBRARY)
            self._agents.send(node, requests.InstallLibrary(name=library.name, tar=library.tar))
        ranks = tuple(
            ev.KnownRank(
                attempt=known.attempt,
                rank=known.rank,
                pid=known.pid,
                # How a rank of this attempt ended follows below, with what explains it.
                status=None if known.attempt == state.attempt else known.status,
                generation=known.generation,
            )
            for known in hello.ranks
        )
        self._run.handle(ev.NodeConnected(at=now, node=node, agent_pid=hello.pid, ranks=ranks))
        self._orders.start_daemon(node)
        self._orders.keep_warm(node)
        self._orders.watch_gpus(node)
        for known in hello.ranks:
            if known.status is not None:
                self._take_rank_end(known, known.status)

    def _take_store(self, node: str, store: reports.StoreReported) -> None:
        if node == self._run.head:
            self._run.handle(
                ev.StoreOpened(
                    at=time.time(),
                    attempt=store.attempt,
                    node=node,
                    address=store.host,
                    port=store.port,
                    interfaces=self._orders.store_interfaces,
                )
            )

    def _take_lost_store(self, lost: reports.StoreLossReported) -> None:
        """Reports that the store was lost. Where ranks rejoin, they may have met before; what they reported then is read first."""

        def report() -> None:
            self._ingest.catch_up()
            said = store_words(lost.reason, lost.status, lost.output, str(self._run.paths.store_log(lost.attempt)))
            self._run.handle(
                ev.StoreLost(
                    at=time.time(),
                    attempt=lost.attempt,
                    reason=said.reason,
                    status=lost.status,
                    advice=said.advice,
                )
            )

        async def report_later() -> None:
            await asyncio.sleep(REPORT_TIME)
            report()

        if is_forming(self._run.state):
            self._run.tasks.create_task(report_later(), name="lost store")
        else:
            report()

    def _warn_of_login(self, node: str, hello: reports.Hello) -> None:
        """Reports that the ranks of a node will not outlive a login. Several nodes are checked early, which reports it too."""
        (planned,) = self._run.plan.nodes[:1]
        if hello.ends_with and len(self._run.plan.nodes) == 1:
            found = login_finding(planned, hello.ends_with)
            text = f"{found.text}; {found.hint}"
            self._run.warn(node, "login", text)

    def _warn_of_limits(self, node: str) -> None:
        """Reports limits of this machine that will slow ranks down or end them. Several nodes are checked early, which reports it too."""
        (planned, *others) = self._run.plan.nodes
        if planned.transport != "local" or others:
            return
        if found := limit_finding(planned, memory_limit(), cpu_limit(), process_limits()):
            text = f"{found.text}; {found.hint}"
            self._run.warn(node, "limits", text)

    def _why_unfit(self, node: str, hello: reports.Hello) -> str:
        """Returns why a node is given up before any of its ranks starts; empty: it is fit."""
        plan, ranks = self._run.plan, len(self._run.ranks_of(node))
        room = rank_capacity(hello.open_files, hello.processes)
        if room is not None and room.ranks < ranks:
            return f"{room.words(ranks)}; {room.hint}"
        if plan.launch.wrap:
            return ""  # ranks have another Python than the agent
        has_own_path = "PYTHONPATH" in {**plan.env, **plan.env_defaults}
        lack = lack_of(plan, python=hello.python, torch="" if has_own_path else hello.torch)
        return f"{lack.fact}; {lack.hint}" if lack else ""

    def _take_imports(self, node: str, news: reports.ImportsReported) -> None:
        now = time.time()
        modules = tuple((visible(name), seconds) for name, seconds in news.modules)
        self._run.handle(ev.ModulesImported(at=now, node=node, modules=modules, earlier=news.earlier))
        for module, reason in news.left_out:
            text = visible(f"{module} is not preloaded: it {reason}")
            self._run.warn(node, "preload", text)
            _keep_refusal(self._run.plan, module, reason)

    def _take_no_room(self, node: str, news: reports.NoRoom) -> None:
        where = visible(f"{news.path}: {news.reason}")
        self._run.note_lack_of_room(node, where)
        text = f"its disk is full: ranks and stores that start again wait for space, {where}"
        self._run.warn(node, "disk", text)

    def _take_failed_request(self, node: str, failed: reports.RequestFailed) -> None:
        """Reports a request that failed inside the agent, in place of its result."""
        now, attempt, reason = time.time(), self._run.state.attempt, failed.reason
        note(f"{node} could not {failed.request}: {reason}")
        if failed.request in ("library", "open_store", "tell"):
            self._take_lost_store(reports.StoreLossReported(attempt=attempt, reason=reason))
        elif failed.request == "daemon":
            self._orders.take_mpirun_end(node, 1, reason)
        elif failed.request == "spawn":
            for rank in self._run.ranks_of(node):
                generation = self._run.state.generation_of(rank)
                self._run.handle(
                    ev.RankEnded(at=now, attempt=attempt, rank=rank, status=126, reason=reason, generation=generation)
                )

    # --- ranks --------------------------------------------------------------------------------------------------------

    def _take_rank(self, news: reports.SpawnReported | reports.EndReported | reports.LossReported) -> None:
        now = time.time()
        match news:
            case reports.SpawnReported(attempt=attempt, rank=rank, pid=pid, generation=generation):
                self._run.end_lack_of_room(self._run.plan.places[rank].node)
                self._run.handle(ev.RankSpawned(at=now, attempt=attempt, rank=rank, pid=pid, generation=generation))
            case reports.LossReported(attempt=attempt, rank=rank, reason=reason, alive=alive, generation=generation):
                step = self._ingest.last.step(rank) if attempt == self._ingest.attempt else None
                self._run.handle(
                    ev.RankLost(
                        at=now,
                        attempt=attempt,
                        rank=rank,
                        reason=reason,
                        alive=alive,
                        step=step,
                        generation=generation,
                    )
                )
            case reports.EndReported():
                self._take_rank_end(news, news.status)
            case _ as never:
                assert_never(never)

    def _take_rank_end(self, end: RankEnd, status: int) -> None:
        ended = ev.RankEnded(
            at=time.time(),
            attempt=end.attempt,
            rank=end.rank,
            status=status,
            reason=end.reason,
            generation=end.generation,
            by_itself=isinstance(end, reports.EndReported) and end.by_itself,
        )
        if end.attempt == self._ingest.attempt:
            try:
                ended = self._with_details(ended, end)
            except Exception as error:  # noqa: BLE001 - that it has ended must be known
                self._run.take_failed_reading(
                    self._run.plan.places[end.rank].node, "the last step of a rank is not known", error
                )
        self._run.handle(ended)

    def _with_details(self, ended: ev.RankEnded, end: RankEnd) -> ev.RankEnded:
        """Adds to the end of a rank its earlier reports, and the reason of its failure."""
        rank, numbers = end.rank, end.numbers.encode(errors="replace")
        self._ingest.catch_up()  # what it reported decides whether this rank, or any, can rejoin
        if end.errors is not None:
            self._ingest.last.told_errors[rank] = end.errors.lstrip("\0").encode(errors="replace")
        ended = msgspec.structs.replace(
            ended,
            step=self._ingest.last.step(rank, numbers),
            by=self._run.kills.sender(rank, ended.status),
        )
        return self._explain(ended, end, numbers) if ended.status != 0 else ended

    def _explain(self, ended: ev.RankEnded, end: RankEnd, numbers: bytes) -> ev.RankEnded:
        """Adds to the end of a failed rank whether it blames another one, why it could not set its process group up, and why it would fail again."""
        status = ended.status
        try:
            tail = self._ingest.last.errors(end.rank)
            mpi_status = status if self._orders.has_mpirun else None
            no_retry = place = ""
            if not (secondary := is_secondary(tail, mpi_status, status)) and self._run.state.on_failure == "restart":
                no_retry, place = why_again(explain(end.rank, status, tail, end.reason, ended.by))
            return msgspec.structs.replace(
                ended,
                secondary=secondary,
                setup_error=self._why_not_formed(end, status, tail, numbers),
                no_retry=visible(no_retry),
                place=visible(place),
            )
        except Exception as error:  # noqa: BLE001 - the content comes from ranks
            node = self._run.plan.places[end.rank].node
            self._run.take_failed_reading(node, "the failure of a rank is not explained", error)
            return ended

    def _why_not_formed(self, end: RankEnd, status: int, tail: bytes, numbers: bytes) -> str:
        """Returns why a rank could not set its process group up, if another backend is left; empty if it ended for another reason."""
        state = self._run.state
        if not state.fallback or not isinstance(state.phase, Starting | Running | Holding):
            return ""
        # mpirun ended before the rank had a place; 126 and 127 mean that a program could not be started.
        unplaced = self._orders.has_mpirun and isinstance(state.ranks[end.rank], Pending) and status == 1
        if not unplaced and not self._ingest.last.is_joining(end.rank, numbers):
            return ""
        said = explain(end.rank, status, tail, end.reason)
        return visible(said.detail or said.headline)

    # --- numbers ------------------------------------------------------------------------------------------------------

    def _take_growth(self, node: str, grew: reports.FilesGrew) -> None:
        if node in self._agents.remotes:
            return
        for rank, *_ in grew.sizes:
            self._run.check_rank(node, rank)
        self._ingest.take_sizes(grew.attempt, grew.sizes)

    def _take_process_use(self, node: str, news: reports.RanksUsed) -> None:
        if news.attempt != self._run.state.attempt:
            return
        for rank, *said in news.ranks:
            self._run.check_rank(node, rank)
            use = process_use(said)
            self._ingest.take_resources(rank, values_of_process(use))
            self._run.take_process_use(rank, use)

    def _take_gpu_use(self, node: str, news: reports.GpusUsed) -> None:
        if news.attempt != self._run.state.attempt:
            return
        for rank, *said in news.ranks:
            self._run.check_rank(node, rank)
            use = read_use(said)
            if use is not None:
                self._ingest.take_resources(rank, values_of_gpu(use))
            self._run.take_gpu_use(rank, use)


def _keep_refusal(plan: LaunchPlan, module: str, reason: str) -> None:
    try:
        remember_refusal(plan, module, reason)
    except (RankdeckError, OSError) as error:
        note(f"can't keep that {visible(module)} is not preloaded: {error}")
