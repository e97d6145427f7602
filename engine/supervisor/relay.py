"""Output of ranks on other machines: their agents send it, and it is stored where the files would be on this one."""

from __future__ import annotations

import asyncio
import time

from engine.core.run import events as ev
from engine.core.wire import agent as wire
from engine.supervisor.agents import Agents
from engine.supervisor.ingest import Ingest
from engine.supervisor.log import note
from engine.supervisor.supervised import SupervisedRun

RETRY_DELAY = 2.0
"""Seconds after which a node is asked again for what could not be stored: a full disk, for one."""

STORE_PATIENCE = 60.0
"""Seconds that the end of a run waits for a place to store what ranks wrote; it stays on its node after that."""

ACKNOWLEDGED_SIZE = 1 << 16
"""Bytes from a node after which it is told that they have arrived."""


class Relay:
    """Stores what ranks of other machines write.

    Args:
        run: the run.
        agents: who send it.
        ingest: stores and reads it.
    """

    def __init__(self, run: SupervisedRun, agents: Agents, ingest: Ingest) -> None:
        self._run, self._agents, self._ingest = run, agents, ingest
        self._unacknowledged: dict[str, int] = {}
        """Bytes from each node that it was not told of."""
        self._retries: dict[str, asyncio.TimerHandle] = {}
        """Nodes that will be asked to send again what could not be stored."""
        self._unstored: dict[str, float] = {}
        """Nodes that are cleared, but whose ranks wrote what could not be stored yet; since when."""

    def start_attempt(self) -> None:
        """Forgets what could not be stored of the last one."""
        self._unstored.clear()

    def is_unstored(self, node: str) -> bool:
        """Whether a node has output that could not be stored here."""
        return node in self._unstored

    def take_output(self, node: str, output: wire.RankOutput) -> None:
        """Stores what a rank wrote."""
        self._unacknowledged[node] = self._unacknowledged.get(node, 0) + len(output.data)
        if self._unacknowledged[node] >= ACKNOWLEDGED_SIZE:
            self._agents.send(node, wire.Stored(size=self._unacknowledged.pop(node)))
        if output.attempt != self._ingest.attempt:
            return
        try:
            is_next = self._ingest.take_data(output.rank, output.stream, output.offset, output.data)
        except OSError as error:
            note(f"can't store what rank {output.rank} wrote: {error.strerror}")
            is_next = False
        if not is_next and node not in self._retries:
            self._retries[node] = asyncio.get_running_loop().call_later(RETRY_DELAY, self.ask_for_output, node)

    def take_cleared(self, node: str, cleared: wire.AttemptCleared) -> None:
        """Believes that a node is cleared once all is stored that its ranks have written: its files go away next.

        Raises:
            ValueError: it names ranks of another node.
        """
        now = time.time()
        for rank, *_ in cleared.sizes:
            self._run.check_rank(node, rank)
        missing = (
            node in self._agents.remotes
            and cleared.attempt == self._ingest.attempt
            and any(self._ingest.stored_sizes(rank) != sizes for rank, *sizes in cleared.sizes)
        )
        if missing and now - self._unstored.setdefault(node, now) < STORE_PATIENCE and not cleared.at_once:
            asyncio.get_running_loop().call_later(RETRY_DELAY, self._clear_again, node, cleared.attempt)
            return
        if missing:
            note(f"{node}: not all that its ranks wrote could be stored; it stays in {self._agents.folder(node)}")
        else:
            self._unstored.pop(node, None)
        self._run.handle(ev.NodeCleared(at=now, attempt=cleared.attempt, node=node, abandoned=cleared.abandoned))

    def _clear_again(self, node: str, attempt: int) -> None:
        self.ask_for_output(node)
        self._agents.send(node, wire.Clear(attempt=attempt))

    def ask_for_output(self, node: str) -> None:
        """Asks for what ranks write, from where it is stored."""
        if (retry := self._retries.pop(node, None)) is not None:
            retry.cancel()
        offsets = [(rank, *self._ingest.stored_sizes(rank)) for rank in self._run.ranks_of(node)]
        self._ingest.take_sizes(self._ingest.attempt, offsets)
        self._unacknowledged.pop(node, None)
        self._agents.send(node, wire.Relay(attempt=self._ingest.attempt, offsets=tuple(offsets)))
