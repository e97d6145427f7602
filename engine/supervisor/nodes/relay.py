"""Output of ranks on other machines: their agents send it, and it is stored in the run's folder."""

import asyncio
import time

from engine.core.run import events as ev
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.supervisor.log import note
from engine.supervisor.nodes.agents import Agents
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun

RETRY_DELAY = 2.0  # seconds before a node is asked again for output that could not be stored
STORE_PATIENCE = 60.0  # seconds that the end of a run waits until output can be stored; then it stays on its node
ACKNOWLEDGED_SIZE = 1 << 16  # bytes from a node after which they are acknowledged


class Relay:
    """Stores output of ranks on other machines."""

    def __init__(self, run: SupervisedRun, agents: Agents, ingest: Ingest) -> None:
        self._run, self._agents, self._ingest = run, agents, ingest
        self._unacknowledged: dict[str, int] = {}
        """Bytes from each node that are not acknowledged."""
        self._retries: dict[str, asyncio.TimerHandle] = {}
        """Nodes that will be asked again for output."""
        self.unstored: dict[str, float] = {}
        """Nodes that are cleared but have output that is not stored yet; since when."""

    def start_attempt(self) -> None:
        """Forgets unstored output of the last attempt."""
        self.unstored.clear()

    def stored_sizes(self, rank: int) -> tuple[int, ...]:
        """Bytes that are stored of each of a rank's files."""
        return tuple(self._ingest.stored_sizes(rank))

    def take_output(self, node: str, output: reports.RankOutput) -> None:
        self._unacknowledged[node] = self._unacknowledged.get(node, 0) + len(output.data)
        if self._unacknowledged[node] >= ACKNOWLEDGED_SIZE:
            self._agents.links[node].send(requests.Stored(size=self._unacknowledged.pop(node)))
        if output.attempt != self._ingest.attempt:
            return
        try:
            is_next = self._ingest.take_data(output.rank, output.stream, output.offset, output.data)
        except OSError as error:
            self._run.note_disk_trouble(error)
            is_next = False
        if not is_next and node not in self._retries:
            self._retries[node] = asyncio.get_running_loop().call_later(RETRY_DELAY, self.ask_for_output, node)

    def take_cleared(self, node: str, cleared: reports.AttemptCleared) -> None:
        """Reports a node as cleared after all output of its ranks is stored, because its files are removed next. Raises ValueError: it
        contains ranks of another node."""
        now = time.time()
        self._run.check_ranks(node, (rank for rank, *_ in cleared.sizes))
        missing = (
            node in self._agents.remotes
            and cleared.attempt == self._ingest.attempt
            and any(self._ingest.stored_sizes(rank) != sizes for rank, *sizes in cleared.sizes)
        )
        if missing and now - self.unstored.setdefault(node, now) < STORE_PATIENCE and not cleared.at_once:

            def clear_again() -> None:
                self.ask_for_output(node)
                self._agents.links[node].send(requests.Clear(attempt=cleared.attempt))

            asyncio.get_running_loop().call_later(RETRY_DELAY, clear_again)
            return
        if missing:
            note(f"{node}: not all output of its ranks could be stored; it stays in {self._agents.folder(node)}")
        else:
            self.unstored.pop(node, None)
        self._run.handle(ev.NodeCleared(at=now, attempt=cleared.attempt, node=node, abandoned=cleared.abandoned))

    def ask_for_output(self, node: str) -> None:
        """Asks for output of ranks, from where it is stored."""
        if (retry := self._retries.pop(node, None)) is not None:
            retry.cancel()
        offsets = [(rank, *self._ingest.stored_sizes(rank)) for rank in self._run.ranks_of(node)]
        self._ingest.take_sizes(self._ingest.attempt, offsets)
        self._unacknowledged.pop(node, None)
        self._agents.links[node].send(requests.Relay(attempt=self._ingest.attempt, offsets=tuple(offsets)))
