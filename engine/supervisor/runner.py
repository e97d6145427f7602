"""The event loop of a run: events in; journal, state machine and actions out."""

import asyncio
import itertools
import operator
import os
import resource
import time

from engine.core.plan.plan import LaunchPlan
from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.machine import replay, step
from engine.core.run.state import Ended, Opening, RunState, ends_with_job, finished, rank_word, waits_for_job
from engine.core.views.story import tell, tell_all
from engine.core.views.views import MOST_STOPPED, told_ranks
from engine.core.wire.front_end import ENDING
from engine.runs.foreign.traces import read_traces
from engine.runs.paths import RunPaths
from engine.runs.replay import first_event
from engine.supervisor.journal import Journal
from engine.supervisor.nodes.agents import Agents
from engine.supervisor.nodes.bridge import Bridge
from engine.supervisor.nodes.code import CodeCopies
from engine.supervisor.nodes.orders import Orders
from engine.supervisor.nodes.questions import Questions
from engine.supervisor.nodes.relay import Relay
from engine.supervisor.nodes.reports import Reports
from engine.supervisor.origins import Origins
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun
from engine.supervisor.standby.user_template import find_user_template
from engine.supervisor.watches.events import EventWatch

FILES_OF_LINK = 4  # files that a link keeps open: three pipes, and the one that reports the end of its process
OTHER_FILES = 512  # other open files, for example of subscribers


class Runner:
    """One run: its journal, its state, and the parts that act for it."""

    def __init__(
        self,
        paths: RunPaths,
        plan: LaunchPlan,
        journal: Journal,
        tasks: asyncio.TaskGroup,
        bridge: Bridge | None = None,
    ) -> None:
        self._journal = journal
        if not journal.events:
            journal.append(first_event(paths, plan, time.time()))
        state = replay(journal.events)
        assert state is not None
        self.run = run = SupervisedRun(paths, plan, state, tell_all(journal.events), self.handle, tasks)
        self.ingest = Ingest(run)
        self.ingest.start_attempt(state.attempt)
        self.events = EventWatch(run, self.ingest)
        self._reading: asyncio.Task[None] | None = None
        self._read_again = False
        self.agents = Agents(run, bridge)
        # Not where the last supervisor was killed: the template of the run has imported everything.
        is_new = isinstance(run.state.phase, Opening | Ended)
        self.agents.user_template = find_user_template(plan, starts=is_new)
        self.origins = Origins(run)
        self.questions = Questions(run, self.agents)
        self._relay = Relay(run, self.agents, self.ingest)
        self.orders = Orders(run, self.agents, self.questions, self._relay)
        self._copies = CodeCopies(run, self.agents, self.questions)
        self.reports = Reports(run, self.agents, self.ingest, self._relay, self.questions, self.orders, self._copies)
        run.tails |= {rank: self.ingest.last.tail(rank, "err") for rank in told_ranks(state)}
        for event in journal.events:
            run.kills.take(event)

    def start(self, restart_by: str | None) -> None:
        """Connects to the nodes of a new run, of one that had a supervisor before, or of one that is restarted after its end. `restart_by`: who wants
        to restart a run that has ended, or None."""
        run, now = self.run, time.time()
        files = OTHER_FILES + FILES_OF_LINK * len(run.plan.nodes)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # most systems start with 1,024
        if soft < files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, hard), hard))
        if run.tails:
            self._read_traces()
        self.agents.make_links(self.reports.take)
        if len(self._journal.events) == 1:
            self.origins.start_attempt()
            for link in self.agents.links.values():
                link.open(0.0)
        elif restart_by is not None and isinstance(run.state.phase, Ended):
            self.handle(ev.RestartRequested(at=now, by=restart_by))
        elif waits_for_job(run.state):
            nodes = tuple((node.name, node.ranks) for node in run.plan.nodes)
            job, spares, spare_names = run.plan.reach.slurm_job, run.plan.spare_nodes, run.plan.spare_names
            if self.handle(ev.RunContinued(at=now, job=job, nodes=nodes, spare_nodes=spares, spare_names=spare_names)):
                run.ended.set()
        elif isinstance(run.state.phase, Ended):
            run.ended.set()
        else:
            self.handle(ev.SupervisorStarted(at=now, pid=os.getpid()))
            if ends_with_job(run.state):
                self.agents.job.end("")

    def terminate(self) -> None:
        """Stops the run, because SIGTERM ends this process soon: at the end of a login, a job or the machine. The next supervisor finishes it."""
        self.handle(ev.StopRequested(at=time.time(), by="SIGTERM to the supervisor"))

    def handle(self, event: AnyEvent) -> str | None:
        """Processes an event. Returns why the event has no effect, or None if it has. Raises OSError: a user's request can't be written to
        the journal, and is refused. A stop is never refused."""
        run = self.run
        if run.ended.is_set():
            return ENDING
        before = run.state
        state, actions = step(before, event)
        ignored = next((action.reason for action in actions if isinstance(action, act.Ignore)), None)
        if state is before and ignored is not None:
            return ignored
        if error := self._journal.append(event, durable=isinstance(state.phase, Ended)):
            run.note_disk_trouble(error)
        run.state = state
        self._note_changes(before, state)
        if line := tell(len(run.story), event, before, state):
            run.story.append(line)
        run.kills.take(event)
        if isinstance(event, ev.HealthNoticed) and event.kind == "stalled":
            self.ingest.stretches.hang()
        for action in actions:
            self.orders.do(action)
        if isinstance(state.phase, Ended):
            run.ended.set()
        return None

    def _note_changes(self, before: RunState, after: RunState) -> None:
        run = self.run
        if before.attempt != after.attempt:
            self.ingest.drain(finished(before))
            self.ingest.start_attempt(after.attempt)
            run.start_attempt(after)
            self.events.start_attempt()
            self.origins.start_attempt()
            self._relay.start_attempt()
            self.orders.mpirun.start_attempt()
        if before.nodes is not after.nodes:
            if [node.name for node in before.nodes] != [node.name for node in after.nodes]:
                run.take_plan(after)
                self.agents.add_links()
            for node, now in zip(before.nodes, after.nodes, strict=True):
                if node.link != now.link:
                    run.forget_use(now.ranks)
        if before.ranks is after.ranks:
            return
        is_changed = map(operator.is_not, before.ranks, after.ranks)  # faster than a loop for thousands of ranks
        for rank in itertools.compress(itertools.count(), is_changed):
            run.note_change(rank)
            word, is_new = rank_word(after.ranks[rank]), rank not in run.tails
            if is_new and (word in ("failed", "lost") or (word == "stopped" and 0 < len(run.tails) < MOST_STOPPED)):
                run.tails[rank] = self.ingest.last.errors(rank)
                self._read_traces()

    def _read_traces(self) -> None:
        """Reads torch's recorded collectives; repeats a running read, because other ranks may have written since."""
        self._read_again = True
        if self._reading is None or self._reading.done():
            self._reading = self.run.tasks.create_task(self._take_traces())

    async def _take_traces(self) -> None:
        run = self.run
        while self._read_again:
            self._read_again = False
            attempt = run.state.attempt
            try:
                folder, ranks, since = run.paths.attempt(attempt), run.plan.world_size, run.state.generation_since
                traces = await asyncio.to_thread(read_traces, folder, ranks, since)
            except Exception as error:  # noqa: BLE001 - the files come from ranks
                run.take_failed_reading(run.head, "recorded collectives are not read", error)
                continue
            if attempt == run.state.attempt:
                run.take_waits(traces.waits)

    async def wait_closed(self) -> None:
        self._copies.stop()
        self.orders.stop()
        for link in self.agents.links.values():
            await link.wait_closed()
