"""Questions to agents, and their answers. While a run starts: which addresses its nodes use to reach each other, and which problems
would appear late.

Addresses are found by connecting: names, first addresses and interfaces that look right often do not work. The check uses the open
connections, and takes less time than importing torch.
"""

import asyncio
import contextlib
import itertools
import secrets
import time
from typing import NamedTuple, TypeVar

import msgspec

from engine.core.checks.cluster_findings import Answers, comparisons
from engine.core.checks.findings import Clock, Finding, JobFacts, Machine, job_question, machine_question
from engine.core.checks.job_findings import job_findings
from engine.core.checks.node_findings import clock_finding, machine_findings
from engine.core.failures.stacks import ChildStack, RankStack
from engine.core.plan.plan import LaunchPlan, PlannedNode
from engine.core.run.state import rank_word
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.supervisor.nodes.agents import Agents
from engine.supervisor.run import SupervisedRun

ANSWER_TIMEOUT = 15.0  # seconds for an agent's answer: longer than its own timeouts, so that it can report them
STACKS_TIMEOUT = 12.0  # seconds for the stacks of all ranks of a node: an agent waits up to 7 for them
A = TypeVar("A", bound=reports.Answer)


class Questions:
    def __init__(self, run: SupervisedRun, agents: Agents) -> None:
        self._run, self._agents = run, agents
        self._numbers = itertools.count(1)
        self._waiting: dict[tuple[str, int], asyncio.Future[reports.Answer]] = {}
        """Pending answers, by node and number."""
        self._stacks: dict[str, asyncio.Future[reports.StacksTaken]] = {}
        """Pending stacks, by node."""

    async def ask(self, node: str, question: requests.Question, answer: type[A]) -> A:
        """Asks a node's agent. `question`: without its number. Raises TimeoutError: no answer of this type within `ANSWER_TIMEOUT`."""
        number = next(self._numbers)
        waiting: asyncio.Future[reports.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[node, number] = waiting
        try:
            self.send(node, msgspec.structs.replace(question, number=number))
            async with asyncio.timeout(ANSWER_TIMEOUT):
                said = await waiting
        finally:
            del self._waiting[node, number]
        if not isinstance(said, answer):
            raise TimeoutError
        return said

    def send(self, node: str, request: requests.Request) -> None:
        self._agents.links[node].send(request)

    def take_answer(self, node: str, answer: reports.Answer) -> None:
        """Passes an answer to the task that waits for it."""
        waiting = self._waiting.get((node, answer.number))
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def take_stacks(self, node: str, stacks: reports.StacksTaken) -> None:
        """Passes stacks to the tasks that wait for them. Raises ValueError for ranks of another node."""
        said = (stacks.ranks, stacks.collectives, stacks.children, stacks.programs)
        self._run.check_ranks(node, {entry[0] for entries in said for entry in entries})
        if (waiting := self._stacks.pop(node, None)) and not waiting.done():
            waiting.set_result(stacks)

    async def stacks(self) -> tuple[RankStack, ...]:
        """Returns the Python stacks and collectives of every rank, within a few seconds; or why a rank has none."""
        found: dict[int, RankStack] = {}
        asked: dict[str, asyncio.Future[reports.StacksTaken]] = {}
        for node in self._run.state.nodes:
            if node.link != "up":
                continue
            if node.name not in self._stacks:
                self._stacks[node.name] = asyncio.get_running_loop().create_future()
                self._agents.links[node.name].send(requests.TakeStacks(attempt=self._run.state.attempt))
            asked[node.name] = self._stacks[node.name]
        if asked:
            await asyncio.wait(asked.values(), timeout=STACKS_TIMEOUT)
        for name, answer in asked.items():
            if not answer.done():
                if self._stacks.get(name) is answer:  # another task may have removed it
                    del self._stacks[name]
                continue
            said = answer.result()
            collectives = dict(said.collectives)
            for rank, text, reason in said.ranks:
                children = tuple(ChildStack(pid=pid, text=text) for of, pid, text in said.children if of == rank)
                found[rank] = RankStack(
                    rank=rank,
                    text=text,
                    reason=reason,
                    collectives=collectives.get(rank, ""),
                    children=children,
                    programs=tuple(name for of, _, name in said.programs if of == rank),
                )
        for rank, phase in enumerate(self._run.state.ranks):
            if rank not in found:
                word = rank_word(phase)
                reason = "its node does not answer" if word == "running" else f"it has no process: {word}"
                found[rank] = RankStack(rank=rank, reason=reason)
        return tuple(found[rank] for rank in sorted(found))


TRIES, PAUSE = 3, 1.0  # tries of nodes to reach each other before a launch is refused, and seconds between


class NoRouteError(Exception):
    """No address of the head is reached by all nodes: one line with the fact and the next step."""


class Routes(NamedTuple):
    """An address of the head that all others reach, and each node's interface towards it as `(node, name)`."""

    address: str
    interfaces: tuple[tuple[str, str], ...]


async def find_routes(questions: Questions, head: str, others: list[str], address: str = "") -> Routes:
    """Lets every other node connect to each address of the head, and chooses the first that all of them reach.

    The head sends its addresses in order: the one by which its agent was reached comes first, IPv4 before IPv6. If there is none, they
    try again: a node without a free processor may answer too late, and a link may have been cut for a moment.

    Args:
        head: the node that will host the store.
        others: all other nodes.
        address: the only one to try; empty: all of the head.

    Raises:
        NoRouteError: there is no such address.
    """
    for _ in range(TRIES - 1):
        with contextlib.suppress(NoRouteError):
            return await _try_routes(questions, head, others, address)
        await asyncio.sleep(PAUSE)
    return await _try_routes(questions, head, others, address)


async def _try_routes(questions: Questions, head: str, others: list[str], only: str) -> Routes:
    token = secrets.token_hex(16)  # an address may belong to another machine: 172.17.0.1 is on every node with Docker
    try:
        listener = await questions.ask(head, requests.OpenListener(token=token), reports.ListenerOpened)
        addresses = (only,) if only else listener.addresses
        question = requests.TryAddresses(addresses=addresses, port=listener.port, token=token)
        answers = await asyncio.gather(
            *(questions.ask(node, question, reports.AddressesTried) for node in others), return_exceptions=True
        )
    except TimeoutError:
        raise NoRouteError(f"{head} did not report its addresses") from None
    finally:
        questions.send(head, requests.CloseListener())
    reached: dict[str, dict[str, str]] = {}
    for node, answer in zip(others, answers, strict=True):
        if isinstance(answer, BaseException):
            raise NoRouteError(f"{node} did not report whether it reaches {head}") from None
        reached[node] = dict(answer.reached)
    tried = ", ".join(addresses) or "no address"
    for node in others:
        if not reached[node]:
            hint = "check routes and firewalls between the nodes"
            raise NoRouteError(f"{node} does not reach {head} (tried {tried}): {hint}")
    address = next((one for one in addresses if all(one in reached[node] for node in others)), None)
    if address is None:
        hint = "leave a node out, or join their networks"
        raise NoRouteError(f"no address of {head} is reached by all other nodes (tried {tried}): {hint}")
    try:
        named = await questions.ask(head, requests.NameInterface(address=address), reports.InterfaceNamed)
    except TimeoutError:
        raise NoRouteError(f"{head} did not report which interface has {address}") from None
    return Routes(address, ((head, named.name), *((node, reached[node][address]) for node in others)))


def interface_environment(interface: str) -> dict[str, str]:
    """Returns variables that make gloo, NCCL and UCC use an interface; empty: unknown. Without them they guess, gloo by the host name."""
    if not interface:
        return {}
    names = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {**names, "RANKDECK_INTERFACE": interface}  # whether UCX uses it depends on the node's other networks


async def check_early(questions: Questions, plan: LaunchPlan, probes: dict[str, str]) -> list[Finding]:
    """Checks every node of a plan. `probes`: path of the probe on each node. Returns problems and warnings. Nodes without a valid answer are
    left out, because their links report that."""
    answers = {node.name: Answers() for node in plan.nodes}
    checks = (_check_node(questions, plan, node, probes[node.name], answers[node.name]) for node in plan.nodes)
    found = [finding for findings in await asyncio.gather(*checks) for finding in findings]
    latest = {(finding.node, finding.check): finding for finding in [*found, *comparisons(answers)]}
    # "leftovers" would be this run itself.
    return [one for one in latest.values() if one.state in ("warn", "fail") and one.check != "leftovers"]


async def _check_node(
    questions: Questions, plan: LaunchPlan, node: PlannedNode, probe: str, answers: Answers
) -> list[Finding]:
    asked = requests.RunProbe(
        argv=(*plan.rank_python, "-I", probe),
        questions=(
            {"ask": "clock"},
            {"ask": "machine", **machine_question(plan, node)},
            {"ask": "job", **job_question(plan)},
        ),
    )
    sent = time.time()
    try:
        said = await questions.ask(node.name, asked, reports.ProbeAnswered)
        received = time.time()
        clock, machine, job = said.answers
        at = msgspec.convert(clock, Clock).time
        answers.machine, answers.job = msgspec.convert(machine, Machine), msgspec.convert(job, JobFacts)
    except (TimeoutError, ValueError):
        return []
    return [
        clock_finding(node.name, at - (sent + received) / 2, (received - sent) / 2),
        *machine_findings(plan, node, answers.machine),
        *job_findings(plan, node.name, answers.machine, answers.job, full=False),
    ]
