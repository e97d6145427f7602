"""The starts and ends of ranks as their agents report them, with the reasons of failures."""

import time

import msgspec

from engine.core.failures.diagnosis import explain, is_secondary, why_again
from engine.core.run import events as ev
from engine.core.run.health_events import STAYED
from engine.core.run.state import Holding, Pending, Running, Starting
from engine.core.terminal_text import visible
from engine.core.wire import agent_reports as reports
from engine.supervisor.nodes.orders import Orders
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun

RankEnd = reports.EndReported | reports.RankListed  # told at once, or after a connection


class RankEnds:
    """Turns reports about processes of ranks into events."""

    def __init__(self, run: SupervisedRun, ingest: Ingest, orders: Orders) -> None:
        self._run, self._ingest, self._orders = run, ingest, orders

    def take_spawn(self, news: reports.SpawnReported) -> None:
        event = ev.RankSpawned(
            at=time.time(), attempt=news.attempt, rank=news.rank, pid=news.pid, generation=news.generation
        )
        self._run.handle(event)

    def take_loss(self, news: reports.LossReported) -> None:
        step = self._ingest.last.step(news.rank) if news.attempt == self._ingest.attempt else None
        event = ev.RankLost(
            at=time.time(), attempt=news.attempt, rank=news.rank, reason=news.reason, alive=news.alive, step=step,
            generation=news.generation,
        )  # fmt: skip
        self._run.handle(event)

    def take_end(self, end: RankEnd, status: int) -> None:
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
        by, step = self._run.kills.sender(rank, ended.status), self._ingest.last.step(rank, numbers)
        if step is None:  # it prints none: the step of the others
            step = max((one.step for one in self._ingest.progress if one.step is not None), default=None)
        if by == STAYED:  # its exception has ended it
            ended, by = msgspec.structs.replace(ended, status=1), ""
        ended = msgspec.structs.replace(ended, step=step, by=by)
        return self._explain(ended, end, numbers) if ended.status != 0 else ended

    def _explain(self, ended: ev.RankEnded, end: RankEnd, numbers: bytes) -> ev.RankEnded:
        """Completes the end of a failed rank: whether the rank blames another rank, why it could not set up its process group, and why it
        would fail again."""
        status = ended.status
        try:
            tail = self._ingest.last.errors(end.rank)
            mpi_status = status if self._orders.mpirun.is_used else None
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
        unplaced = self._orders.mpirun.is_used and isinstance(state.ranks[end.rank], Pending) and status == 1
        if not unplaced and not self._ingest.last.is_joining(end.rank, numbers):
            return ""
        said = explain(end.rank, status, tail, end.reason)
        return visible(said.detail or said.headline)
