"""Questions to agents, and their answers."""

from __future__ import annotations

import asyncio
import itertools
from typing import TypeVar

import msgspec

from engine.core.failures.stacks import ChildStack, RankStack
from engine.core.run.state import rank_word
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.supervisor.nodes.agents import Agents
from engine.supervisor.run import SupervisedRun

ANSWER_TIMEOUT = 15.0
"""Seconds for an agent's answer: longer than its own timeouts, so that it can report them."""

STACKS_TIMEOUT = 12.0
"""Seconds for the stacks of all ranks of a node: an agent waits up to 7 for them."""

A = TypeVar("A", bound=reports.Answer)


class Questions:
    """Questions to the agents of a run."""

    def __init__(self, run: SupervisedRun, agents: Agents) -> None:
        self._run, self._agents = run, agents
        self._numbers = itertools.count(1)
        self._waiting: dict[tuple[str, int], asyncio.Future[reports.Answer]] = {}
        """Pending answers, by node and number."""
        self._stacks: dict[str, asyncio.Future[reports.StacksTaken]] = {}
        """Pending stacks, by node."""

    async def ask(self, node: str, question: requests.Question, answer: type[A]) -> A:
        """Asks a node's agent. `question`: without its number.

        Raises:
            TimeoutError: no answer of this type within `ANSWER_TIMEOUT`.
        """
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
        """Sends a request that has no answer."""
        self._agents.send(node, request)

    def take_answer(self, node: str, answer: reports.Answer) -> None:
        """Passes an answer to the task that waits for it."""
        waiting = self._waiting.get((node, answer.number))
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def take_stacks(self, node: str, stacks: reports.StacksTaken) -> None:
        """Passes stacks to the tasks that wait for them. Raises ValueError for ranks of another node."""
        said = (stacks.ranks, stacks.collectives, stacks.children)
        for rank in {entry[0] for entries in said for entry in entries}:
            self._run.check_rank(node, rank)
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
                self._agents.send(node.name, requests.TakeStacks(attempt=self._run.state.attempt))
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
                    rank=rank, text=text, reason=reason, collectives=collectives.get(rank, ""), children=children
                )
        for rank, phase in enumerate(self._run.state.ranks):
            if rank not in found:
                word = rank_word(phase)
                reason = "its node does not answer" if word == "running" else f"it has no process: {word}"
                found[rank] = RankStack(rank=rank, reason=reason)
        return tuple(found[rank] for rank in sorted(found))
