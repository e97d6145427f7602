"""Turns reports of agents into events."""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable
from functools import partial
from typing import assert_never

from engine.core.checks.node_findings import limit_finding, login_finding, rank_capacity
from engine.core.errors import RankdeckError
from engine.core.failures.services import ended_words
from engine.core.metrics.resources import process_use, read_use, values_of_gpu, values_of_process
from engine.core.numbers import size_words
from engine.core.plan.needs import lack_of
from engine.core.run import events as ev
from engine.core.run.rejoin import is_forming
from engine.core.run.state import Gone, Opening
from engine.core.terminal_text import visible
from engine.core.views.saved import found_event
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.core.words import rank_words
from engine.node.probe.allowed import cpu_limit, memory_limit, process_limits
from engine.node.programs.checkpoints import item_of
from engine.runs.ends.proof import find_saved
from engine.runs.imports import remember_refusal
from engine.supervisor.log import note
from engine.supervisor.nodes.agents import Agents
from engine.supervisor.nodes.code import CodeCopies
from engine.supervisor.nodes.library import library_name, pack
from engine.supervisor.nodes.orders import Orders
from engine.supervisor.nodes.questions import Questions
from engine.supervisor.nodes.rank_ends import RankEnds
from engine.supervisor.nodes.relay import Relay
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun

REPORT_TIME = 0.5  # seconds in which the reports of ranks arrive, also from other nodes


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
        self._ends = RankEnds(run, ingest, orders)
        self._questions, self._orders, self._copies = questions, orders, copies
        agents.job.find_saved = self._find_saved
        self._failed: set[str] = set()
        """Kinds of reports whose handling has failed."""

    def take(self, node: str, news: reports.AnyReport) -> None:
        """Handles a report. A defect in this costs the connection, because the node reports again what it has when the next one begins; if
        reports of the same kind fail again, they are left out. Raises ValueError: the report is invalid, or its handling has failed for the
        first time."""
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
            self._run.check_ranks(node, [news.rank])
        match news:
            case reports.Hello():
                self._take_hello(node, news)
            case reports.SpawnReported():
                self._run.no_room.pop(node, None)
                self._ends.take_spawn(news)
            case reports.EndReported():
                self._agents.job.after_signal(partial(self._ends.take_end, news, news.status))
            case reports.LossReported():
                self._agents.job.after_signal(partial(self._ends.take_loss, news))
            case reports.RankOutput():
                self._relay.take_output(node, news)
            case reports.FilesGrew():
                if node not in self._agents.remotes:
                    self._run.check_ranks(node, (rank for rank, *_ in news.sizes))
                    self._ingest.take_sizes(news.attempt, news.sizes)
            case reports.GpusUsed() | reports.RanksUsed():
                self._take_use(node, news)
            case reports.StoreReported():
                if node == self._run.head:
                    event = ev.StoreOpened(
                        at=time.time(), attempt=news.attempt, node=node, address=news.host, port=news.port,
                        interfaces=self._orders.store_interfaces,
                    )  # fmt: skip
                    self._run.handle(event)
            case reports.StoreLossReported():
                self._take_lost_store(news)
            case reports.AttemptCleared():
                if self._knows_more(node) and not news.at_once:
                    self._run.tasks.create_task(self._find_and_clear(node, news), name="the look for checkpoints")
                else:
                    self._relay.take_cleared(node, news)
            case reports.DaemonWanted():
                self._orders.mpirun.take_daemon(node, news)
            case reports.MpirunEnded(attempt=attempt, status=status, reason=reason):
                if attempt == self._run.state.attempt:
                    self._orders.mpirun.take_end(node, status, reason)
            case reports.StacksTaken():
                self._questions.take_stacks(node, news)
            case reports.Answer():
                self._questions.take_answer(node, news)
            case reports.TemplateRefused():
                said = ended_words(visible(news.reason), None, news.output, news.log)
                why = f"{said.reason}; {said.advice}" if said.advice else said.reason
                self._run.warn(node, "template", f"ranks start without the template: {why}")
            case reports.ImportsReported():
                self._take_imports(node, news)
            case reports.RanksSave():
                self._take_saves(node, news)
            case reports.JobSignalled():
                self._agents.job.take_signal()
            case reports.CheckpointsSeen():
                self._take_checkpoints(node, news)
            case reports.NoRoom():
                self._run.no_room[node] = where = visible(f"{news.path}: {news.reason}")
                text = f"its disk is full: ranks and stores that start again wait for space, {where}"
                self._run.warn(node, "disk", text)
            case reports.RequestFailed():
                self._take_failed_request(node, news)
            case reports.Pong() | reports.Refused() | reports.BridgeEnded():  # handled by the link
                pass
            case _ as never:
                assert_never(never)

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
        self._run.check_ranks(node, (known.rank for known in hello.ranks))
        if isinstance(state.phase, Opening) and not hello.ranks:
            if reason := self._why_unfit(node, hello):
                self._agents.links[node].close()
                self._run.handle(ev.NodeGivenUp(at=now, node=node, reason=reason))
                return
            self._warn_of_node(hello)
        if node == self._run.head and state.store_port is not None and hello.store != (state.attempt, state.store_port):
            self._take_lost_store(reports.StoreLossReported(attempt=state.attempt, reason="it ended with its agent"))
        if not hello.library:
            self._agents.links[node].send(requests.InstallLibrary(name=library_name(), tar=pack()))
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
        self._orders.mpirun.start_daemon(node)
        self._orders.keep_warm(node)
        self._orders.watch_gpus(node)
        for known in hello.ranks:
            if known.status is not None:
                self._ends.take_end(known, known.status)

    def _take_lost_store(self, lost: reports.StoreLossReported) -> None:
        """Reports that the store was lost. Where ranks rejoin, they may have met before; what they reported then is read first."""

        def report() -> None:
            self._ingest.catch_up()
            said = ended_words(lost.reason, lost.status, lost.output, str(self._run.paths.store_log(lost.attempt)))
            event = ev.StoreLost(
                at=time.time(), attempt=lost.attempt, reason=said.reason, status=lost.status, advice=said.advice
            )
            self._run.handle(event)

        async def report_later() -> None:
            await asyncio.sleep(REPORT_TIME)
            report()

        if is_forming(self._run.state):
            self._run.tasks.create_task(report_later(), name="lost store")
        else:
            report()

    def _warn_of_node(self, hello: reports.Hello) -> None:
        """Reports what will end or slow down the ranks of the only node. Several nodes are checked early, which reports it too."""
        (planned, *others) = self._run.plan.nodes
        if others:
            return
        found = [login_finding(planned, hello.ends_with)] if hello.ends_with else []
        if planned.transport == "local":
            limits = limit_finding(planned, memory_limit(), cpu_limit(), process_limits())
            found += [limits] if limits else []
        for one in found:
            self._run.warn(planned.name, one.check, f"{one.text}; {one.hint}")

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
            try:
                remember_refusal(self._run.plan, module, reason)
            except (RankdeckError, OSError) as error:
                note(f"can't keep that {visible(module)} is not preloaded: {error}")

    def _take_saves(self, node: str, news: reports.RanksSave) -> None:
        """Shows what the stop ladder waits for, and tells it once."""
        saves = self._run.saves
        if news.ranks and node not in saves:
            text = (
                f"the stop waits for {rank_words(news.ranks)}, which may save a checkpoint; stop again to end at once"
            )
            self._run.warn(node, "saving", text)
        size = f" {size_words(news.size)} so far" if news.size else ""
        item = "/".join(news.item.split("/")[-2:])
        saves[node] = visible(f"saving: {item or 'a checkpoint'}{size}") if news.ranks else ""
        self._take_folders([news.item] if news.item else ())
        self._run.note_change()

    def _take_checkpoints(self, node: str, news: reports.CheckpointsSeen) -> None:
        """Reports what the attempt has left. A checkpoint that a rank reports by `rankdeck.log` is valid even if no file of it is found."""
        if node != self._run.head or news.attempt != self._run.state.attempt or self._knows_more(node):
            return
        self._ingest.catch_up()
        self._run.handle(found_event(news.found, self._run.state, self._ingest.progress, time.time()))

    def _knows_more(self, node: str) -> bool:
        """Whether the agent of rank 0 has lost what it knew of the ranks' files, as after a reboot, and the files are on this machine."""
        return (
            node == self._run.head
            and isinstance(self._run.state.ranks[0], Gone)
            and not self._agents.is_elsewhere(node)
        )

    async def _find_and_clear(self, node: str, news: reports.AttemptCleared) -> None:
        await self._find_saved()
        self._relay.take_cleared(node, news)

    async def _find_saved(self) -> None:
        """Looks for checkpoints from here, if the agent of rank 0 was killed before it could look."""
        run = self._run
        if run.state.saved is None:
            self._ingest.catch_up()
            found = await asyncio.to_thread(find_saved, run.paths, run.plan, run.state, self._ingest.progress)
            if found is not None:
                run.handle(found)

    def _take_folders(self, written: Iterable[str]) -> None:
        """Writes down where ranks write checkpoints: who looks for them when all else was killed has to know."""
        for folder in {visible(os.path.dirname(item_of(path))) for path in written} - {*self._run.state.folders}:
            self._run.handle(ev.CheckpointFolderSeen(at=time.time(), attempt=self._run.state.attempt, folder=folder))

    def _take_failed_request(self, node: str, failed: reports.RequestFailed) -> None:
        """Reports a request that failed inside the agent, in place of its result."""
        now, attempt, reason = time.time(), self._run.state.attempt, failed.reason
        note(f"{node} could not {failed.request}: {reason}")
        if failed.request in ("library", "open_store", "tell"):
            self._take_lost_store(reports.StoreLossReported(attempt=attempt, reason=reason))
        elif failed.request == "daemon":
            self._orders.mpirun.take_end(node, 1, reason)
        elif failed.request == "spawn":
            for rank in self._run.ranks_of(node):
                generation = self._run.state.generation_of(rank)
                self._run.handle(
                    ev.RankEnded(at=now, attempt=attempt, rank=rank, status=126, reason=reason, generation=generation)
                )

    def _take_use(self, node: str, news: reports.GpusUsed | reports.RanksUsed) -> None:
        if news.attempt != self._run.state.attempt:
            return
        self._run.check_ranks(node, (rank for rank, *_ in news.ranks))
        if isinstance(news, reports.RanksUsed):
            self._take_folders(news.written)
        for rank, *said in news.ranks:
            if isinstance(news, reports.RanksUsed):
                process = process_use(said)
                self._ingest.take_resources(rank, values_of_process(process))
                self._run.take_process_use(rank, process)
            else:
                if (gpu := read_use(said)) is not None:
                    self._ingest.take_resources(rank, values_of_gpu(gpu))
                self._run.take_gpu_use(rank, gpu)
