"""Checks nodes before a launch, and collects facts about nodes for plans that depend on them."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from engine.backends import judge, program_of
from engine.core.checks.cluster_findings import Answers, comparisons, head_findings, route_findings, silence_findings
from engine.core.checks.findings import (
    CHECKS,
    Begun,
    Check,
    Clock,
    Finding,
    JobFacts,
    Machine,
    ProbeListener,
    Routes,
    Torch,
    fail,
    job_question,
    machine_question,
    ok,
)
from engine.core.checks.job_findings import job_findings, torch_findings
from engine.core.checks.node_findings import clock_finding, machine_findings, reach_finding
from engine.core.errors import CheckError
from engine.core.plan.plan import LaunchPlan, NodeFacts, PlannedNode, ProgramOutput, Reach
from engine.gate import Permit
from engine.planning.batch import BATCH_SYSTEMS
from engine.planning.probes import Probe, ProbeError, probe_on
from engine.planning.trust import admit

AT_ONCE = 32  # most connections opened at the same time: the sshd of a gateway limits them, and each is a local process

QUICK, FULL = 30.0, 60.0
"""Seconds for a node's answers, without and with an import of torch. A busy node takes ten to start Python; one that is down is noticed by
ssh."""

IMPORT_TIME = 45.0  # seconds for the import of torch: from a cold file server it takes half a minute

PROGRAM_TIME, QUICK_PROGRAM_TIME, LAUNCH_PROGRAM_TIME = 20.0, 15.0, 60.0
"""Seconds for the backend's program, in a full and in a quick check, and before a launch: a busy machine needs half a minute. A program that
takes longer does not refuse the backend."""

CONNECT_TIME = 3.0  # seconds for a connection between nodes: enough for a lost packet or two

SLOW = "check that the node is up and its file server responds, for example with: ssh -v"
KEPT, DOUBTED = 60.0, 5.0  # seconds for which facts about a node are kept; after a refusal, which the user may mend


# --- the check ------------------------------------------------------------------------------------------------------------


async def check(plan: LaunchPlan, permit: Permit, *, full: bool) -> AsyncGenerator[Begun | Finding, None]:
    """Checks every node of a plan. `full`: imports torch on every node, which takes seconds.

    Yields:
        The nodes, then findings as they arrive. A later finding replaces an earlier one of the same node and check. At the end
        there is one finding for each check on each node.
    """
    admit(permit, plan, code=full)
    if plan.submission is not None:
        # A job that is still to be submitted: its batch system judges it. Its nodes are checked when it starts.
        name = plan.submission.scheduler
        yield Begun(nodes=(name,))
        try:
            yield ok(name, "ssh", await asyncio.to_thread(BATCH_SYSTEMS[name].test, plan.submission, permit))
        except CheckError as error:
            yield fail(name, "ssh", error.message, error.hint or "")
        for check in CHECKS:
            if check != "ssh":
                yield Finding(node=name, check=check, state="skip", text="checked when the job starts")
        return
    yield Begun(nodes=tuple(node.name for node in plan.nodes))
    found: asyncio.Queue[Finding | None] = asyncio.Queue()
    task = asyncio.create_task(_NodesCheck(plan, permit, found.put_nowait, full=full).run())
    task.add_done_callback(lambda _: found.put_nowait(None))
    try:
        while (finding := await found.get()) is not None:
            yield finding
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])


class _NodesCheck:
    """One check of all nodes. `tell` receives each finding; `full`: torch is imported."""

    def __init__(self, plan: LaunchPlan, permit: Permit, tell: Callable[[Finding], None], *, full: bool) -> None:
        self._plan, self._permit, self._tell_anybody, self._full = plan, permit, tell, full
        self._head, *others = plan.nodes
        self._limit = FULL if full else QUICK
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._known: dict[str, set[Check]] = {node.name: set() for node in plan.nodes}
        self._answers = {node.name: Answers() for node in plan.nodes}
        self._token = secrets.token_hex(8)
        """Proves that the machine that answers is the head: another one may have the same address."""
        self._listener: ProbeListener | None = None
        self._listener_decided = asyncio.Event()
        self._routes: dict[str, Routes] = {}
        self._awaited = len(others)
        self._others_done = asyncio.Event()
        if not others:
            self._others_done.set()

    async def run(self) -> None:
        """Checks all nodes at once, then compares them."""
        async with asyncio.TaskGroup() as tasks:
            for node in self._plan.nodes:
                tasks.create_task(self._check(node))
        if self._listener is not None or len(self._plan.nodes) == 1:
            head = self._answers[self._head.name].machine
            self._tell(head_findings(self._plan, head, self._listener, self._routes))
        self._tell(comparisons(self._answers))

    def _tell(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            self._known[finding.node].add(finding.check)
            self._tell_anybody(finding)

    async def _check(self, node: PlannedNode) -> None:
        """Checks a node. The head begins at once, and its port stays open until the others have tried to connect."""
        is_head = node is self._head
        try:
            async with contextlib.nullcontext() if is_head else self._slots:
                await self._check_node(node)
        finally:
            if is_head:
                self._listener_decided.set()
            else:
                self._awaited -= 1
                if not self._awaited:
                    self._others_done.set()

    async def _check_node(self, node: PlannedNode) -> None:
        """Asks one node all questions. If it can't be asked, that becomes a finding."""
        plan, end = self._plan, asyncio.get_running_loop().time() + self._limit
        try:
            async with (
                probe_on(node, plan.reach, plan.rank_python, self._limit, self._permit) as probe,
                asyncio.timeout_at(end) as deadline,
            ):
                self._tell([reach_finding(node, probe.seconds)])
                sent = time.time()
                clock = await probe.ask("clock", Clock)
                received = time.time()
                ahead, uncertain = clock.time - (sent + received) / 2, (received - sent) / 2
                self._tell([clock_finding(node.name, ahead, uncertain)])
                if node is self._head and self._awaited:
                    self._listener = await probe.ask("listen", ProbeListener, token=self._token)
                    self._listener_decided.set()
                await self._look(node, probe)
                deadline.reschedule(None)  # from here on, it waits for other nodes
                if node is self._head:
                    await self._others_done.wait()
                else:
                    await self._listener_decided.wait()
                    deadline.reschedule(asyncio.get_running_loop().time() + QUICK)
                    await self._try_way(node, probe)
        except (ProbeError, TimeoutError) as error:
            known = self._known[node.name]
            if len(known) < len(CHECKS):
                self._tell(_silence(node.name, known, error, self._limit))

    async def _try_way(self, node: PlannedNode, probe: Probe) -> None:
        """From there to the head."""
        routes = None
        if self._listener is not None:
            addresses, port = self._listener.addresses, self._listener.port
            routes = await probe.ask(
                "connect", Routes, addresses=addresses, port=port, token=self._token, seconds=CONNECT_TIME
            )
            self._routes[node.name] = routes
        self._tell(route_findings(self._plan, node.name, self._listener, routes))

    async def _look(self, node: PlannedNode, probe: Probe) -> None:
        """Checks that need only the node itself."""
        plan, answers = self._plan, self._answers[node.name]
        machine = answers.machine = await probe.ask("machine", Machine, **machine_question(plan, node))
        self._tell(machine_findings(plan, node, machine))
        question = job_question(plan)
        job = answers.job = await probe.ask("job", JobFacts, **question)
        self._tell(job_findings(plan, node.name, machine, job, full=self._full))
        built_in: tuple[str, ...] = ()
        if self._full:
            torch = answers.torch = await probe.ask("torch", Torch, seconds=IMPORT_TIME, **question)
            self._tell(torch_findings(plan, node, machine, job, torch))
            built_in = torch.facts.backends if torch.facts else ()
        if (program := program_of(plan.backend.name)) and plan.backend.name not in built_in:
            seconds = PROGRAM_TIME if self._full else QUICK_PROGRAM_TIME
            said = await probe.ask("run", ProgramOutput, program=program, seconds=seconds, **question)
            try:
                if found := judge(said, plan):
                    self._tell([ok(node.name, "backend", found)])
            except CheckError as error:
                self._tell([fail(node.name, "backend", error.message, error.hint or "")])


def _silence(node: str, known: Collection[Check], error: ProbeError | TimeoutError, limit: float) -> list[Finding]:
    """Findings about a node that no longer answers."""
    if not isinstance(error, ProbeError):
        return silence_findings(node, known, None, f"no answer within {limit:g} s", SLOW)
    if known:
        return silence_findings(node, known, None, error.fact, error.hint)
    if error.is_reached:
        return [ok(node, "ssh", "reached"), *silence_findings(node, ["ssh"], "python", error.fact, error.hint)]
    return silence_findings(node, known, "ssh", error.fact, error.hint)


# --- what nodes have --------------------------------------------------------------------------------------------------------


class _Wanted(NamedTuple):
    """Questions for a node. `job`: a rank's environment as JSON if a question depends on it, else empty."""

    node: PlannedNode
    reach: Reach
    python: tuple[str, ...]
    job: bytes
    with_torch: bool
    program: str


_kept: dict[_Wanted, tuple[float, NodeFacts]] = {}  # facts by question, with the time of the answer (monotonic clock)


def facts_of(
    plan: LaunchPlan,
    nodes: Sequence[PlannedNode],
    permit: Permit,
    *,
    needed: Collection[str],
    with_torch: bool,
    program: str,
) -> tuple[NodeFacts, ...]:
    """Facts about nodes, all asked at once. Reuses answers of the last minute. Blocks, so do not call it on an event loop.

    `needed`: names of nodes without which there is no plan. Others are left out if they can't be asked. `with_torch`: also asks which torch
    the ranks would import. `program`: for the ranks' Python to run; empty: none. Raises CheckError: needed nodes could not be asked; it
    names each of them with the reason. Raises NotTrustedError: they may not be asked.
    """
    admit(permit, plan, code=False)
    now = time.monotonic()
    job = msgspec.json.encode(job_question(plan)) if with_torch or program else b""
    keys = [
        _Wanted(msgspec.structs.replace(node, ranks=()), plan.reach, plan.rank_python, job, with_torch, program)
        for node in nodes
    ]
    wanted = [key for key in keys if key not in _kept or now - _kept[key][0] >= KEPT]
    if wanted:
        troubles: list[tuple[str, str, str]] = []

        async def ask_all() -> list[NodeFacts | tuple[str, str]]:
            slots = asyncio.Semaphore(AT_ONCE)
            return await asyncio.gather(*(_ask_machine(slots, key, permit) for key in wanted))

        for key, answer in zip(wanted, asyncio.run(ask_all()), strict=True):
            if isinstance(answer, NodeFacts):
                _kept[key] = now, answer
                continue
            _kept.pop(key, None)
            if key.node.name in needed:
                troubles.append((key.node.name, *answer))
        if troubles:
            facts = "; ".join(fact if name in fact else f"{name}: {fact}" for name, fact, _ in troubles)
            hint = "; ".join(dict.fromkeys(hint for _, _, hint in troubles))
            if with_torch:
                raise CheckError(f"can't ask whether {plan.backend.name} can run: {facts}", hint=hint)
            hint = f"{hint}; or set layout.ranks_per_node to a number"
            raise CheckError(f"can't ask how many ranks fit: {facts}", hint=hint)
    return tuple(_kept[key][1] for key in keys if key in _kept)


def doubt(node: str) -> None:
    """Lets a node be asked again soon, because it was refused."""
    soon = time.monotonic() - KEPT + DOUBTED
    for key, (at, facts) in _kept.items():
        if key.node.name == node:
            _kept[key] = min(at, soon), facts


async def _ask_machine(slots: asyncio.Semaphore, wanted: _Wanted, permit: Permit) -> NodeFacts | tuple[str, str]:
    """Facts about a node; or what is wrong, and hint."""
    node, python, job, said = wanted.node, wanted.python, None, None
    question = msgspec.json.decode(wanted.job or b"{}")
    try:
        async with slots, probe_on(node, wanted.reach, python, QUICK, permit) as probe:
            async with asyncio.timeout(QUICK):
                machine = await probe.ask("machine", Machine)
                if wanted.with_torch:
                    job = await probe.ask("job", JobFacts, **question)
            if wanted.program:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAUNCH_PROGRAM_TIME + QUICK):
                        said = await probe.ask(
                            "run", ProgramOutput, program=wanted.program, seconds=LAUNCH_PROGRAM_TIME, **question
                        )
    except ProbeError as error:
        return error.fact, error.hint
    except TimeoutError:
        return f"no answer within {QUICK:g} s", SLOW
    facts = NodeFacts(name=node.name, cores=machine.cores, gpus=machine.gpus, python=python[-1], output=said)
    return facts if job is None else msgspec.structs.replace(facts, torch=job.torch, torch_cuda=job.torch_cuda)
