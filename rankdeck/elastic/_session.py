"""One rank's part in an elastic training: it joins a generation, trains, and leaves it when a rank is lost."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from rankdeck._metrics import log
from rankdeck._objects import all_gather_objects
from rankdeck._process_group import device, init_process_group
from rankdeck.elastic._connections import shut_down, sockets
from rankdeck.elastic._handover import Handover
from rankdeck.elastic._leaving import PeerLostError, abort_group, let_go, may_be_peers_fault, words_of
from rankdeck.elastic._news import News, board, connect
from rankdeck.elastic._replacement import Replacement
from rankdeck.elastic._standing import Standing
from rankdeck.elastic._state import Arrival, State, share

P = ParamSpec("P")
R = TypeVar("R")

GRACE = 10.0
"""Seconds that a rank whose collective failed waits to be told that a peer is gone. It is told within milliseconds; if it is
not, no peer is gone, and the error is the script's own."""
CONNECT_TIMEOUT = 20.0
"""Seconds within which ranks that are all there must be connected, and have their state, in the first attempt to form a generation;
each further attempt has twice the time. It ends attempts in which a rank has died unseen, or was held up."""

ATTEMPTS = 4
"""How often ranks try to form a generation in which nobody has died, before they take the error for the machine's."""

_AGAIN, _FORMED, _LOST = "again", "formed", "lost"
"""What has become of an attempt."""


def run(state: State) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates the training function, which is then called as usual.

    Args:
        state: what survives.

    Returns:
        A decorator. What it makes returns what the function returned.

    Raises:
        RuntimeError: (from the decorated function) the process group exists already.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def enter(*args: P.args, **kwargs: P.kwargs) -> R:
            # One mpirun is one fate: its ranks can only start again together, as under torchrun.
            if "RANKDECK_GENERATION" not in os.environ or "mpi" in os.environ["RANKDECK_BACKEND"]:
                return _alone(state, functools.partial(function, *args, **kwargs))
            refuse_what_can_not_work()
            return _Session(state).run(functools.partial(function, *args, **kwargs))

        return enter

    return decorate


def refuse_what_can_not_work() -> None:
    """Raises RuntimeError where the script stands in the way."""
    import torch.distributed as dist

    if dist.is_initialized():
        raise RuntimeError("rankdeck.elastic makes the process group itself: take init_process_group out of the script")


def _alone(state: State, function: Callable[[], R]) -> R:
    """Without rankdeck nobody comes back; the state of the rank that has got furthest is everybody's all the same."""
    import torch.distributed as dist

    made_here = not dist.is_initialized()
    if made_here:
        init_process_group()
    arrivals = all_gather_objects(Arrival(*state._progress, True, dist.get_rank()), device())
    share(state, arrivals, dist.get_rank())
    result = function()
    if made_here:
        gc.collect()  # the DDP wrapper stands in a cycle
        dist.destroy_process_group()
    return result


class _Session:
    """One rank's part in an elastic training, from its first generation to the end."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.backend = os.environ["RANKDECK_BACKEND"]
        self.timeout = float(os.environ.get("RANKDECK_TIMEOUT") or 600)
        self.standing = Standing(
            rank=int(os.environ["RANK"]),
            world=int(os.environ["WORLD_SIZE"]),
            generation=int(os.environ["RANKDECK_GENERATION"]),
        )
        self.handover = Handover(state, self.standing)
        self.others: set[int] = set()
        """Sockets that were there before this generation's."""
        self.sockets: set[int] | None = None
        """Those of the process group; None while it forms."""
        self.excepthook = sys.excepthook
        if self.standing.generation > 0:
            self.handover.take()
        self.store = connect()
        self.news = News(self.standing.generation, self._peer_lost)
        self.replacement = Replacement(state, self.standing, self.news, self.handover)
        self.news.start()

    def run(self, function: Callable[[], R]) -> R:
        """Calls the function in one generation after the other, until it returns."""
        try:
            while True:
                try:
                    self._join()
                    return self._finish(function())
                except RuntimeError as error:
                    self.standing.inside, self.standing.leaving = False, True
                    if not self._is_peers_fault(error):
                        raise
                    said = words_of(error)
                    let_go(error)
                self._leave()
                step = self.state.step
                sys.stderr.write(f"rankdeck: rank {self.standing.rank} lost a peer after step {step}: {said}\n")
                log(step=step, elastic="waiting", generation=self.standing.generation)
                self._await_next()
        finally:
            self.news.close(self.store)

    def _finish(self, result: R) -> R:
        import torch.distributed as dist

        self.standing.inside = False
        gc.collect()
        dist.destroy_process_group()
        return result

    def _await_next(self) -> None:
        """Waits for as long as it takes somebody to start the dead ranks again."""
        try:
            self.news.await_condition(lambda: self.news.generation > self.standing.generation)
        except KeyboardInterrupt:  # the run is being stopped; where this rank waits is nobody's concern
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        self.standing.generation = self.news.generation

    def _is_lost(self) -> bool:
        """Whether this generation has lost a rank."""
        return self.news.lost >= self.standing.generation

    def _is_peers_fault(self, error: RuntimeError) -> bool:
        if isinstance(error, PeerLostError) or self._is_lost():
            return True
        return may_be_peers_fault(error) and self.news.await_condition(self._is_lost, GRACE)

    def _peer_lost(self, generation: int, store: Any) -> None:
        """In the listening thread: frees the main thread, wherever it waits for a peer that is gone.

        With nccl and ucc not every rank notices that a peer is gone, so the group is aborted under the main thread. Gloo's ranks
        notice by their connections, if they wait at one that closes; two that wait for each other would do so until the timeout.
        So the connections are shut down, which also frees a rank that waits for a stopped one.

        Args:
            generation: the one that has lost a rank.
            store: a connection of this thread's: the main thread may wait in its own.
        """
        if generation < self.standing.generation:
            return
        here = board(generation, self.standing.attempt)
        for key in ("complete", "result"):
            store.set(f"{here}/{key}", _LOST)
        if self.standing.inside:
            if "nccl" in self.backend or "ucc" in self.backend:
                abort_group()
            shut_down(self.sockets if self.sockets is not None else sockets() - self.others)
        self.replacement.watch(generation)

    # finding together

    def _join(self) -> None:
        """Waits until every rank is here, makes the process group, and brings everybody to the same state.

        Where that fails though nobody has died, all ranks try again: one that was held up is no reason to lose the state of the others.
        """
        for attempt in range(ATTEMPTS):
            self.standing.attempt = attempt
            arrivals = self._gather()
            try:
                self._form(arrivals)
            except RuntimeError as error:
                if self._is_lost() or attempt + 1 == ATTEMPTS or not may_be_peers_fault(error):
                    raise
                self.store.set(f"{board(self.standing.generation, attempt)}/result", _AGAIN)
                rank, said = self.standing.rank, words_of(error)
                let_go(error)
                sys.stderr.write(f"rankdeck: rank {rank} could not connect to all ranks and tries again: {said}\n")
            else:
                if self._all_have_formed():
                    break
            self.standing.inside = False
            self._leave()
        else:
            raise RuntimeError(f"the process group could not be formed in {ATTEMPTS} attempts: another rank failed")
        if self.standing.generation > 0:
            self.handover.remove()  # others have the state too now
        self.standing.fresh = False
        log(step=self.state.step, elastic="joined", generation=self.standing.generation)

    def _gather(self) -> list[Arrival]:
        """Meets the others at the store. Returns what each of them has said, by rank."""
        standing = self.standing
        here = board(standing.generation, standing.attempt)
        mine = Arrival(*self.state._progress, standing.fresh, standing.rank)
        log(step=self.state.step, elastic="joining", generation=standing.generation)
        self.store.set(f"{here}/{standing.rank}", json.dumps(mine))
        if self.store.add(f"{here}/count", 1) == standing.world:
            self.store.set(f"{here}/complete", "1")
        if self._is_lost() or self.store.get(f"{here}/complete") == _LOST.encode():
            raise PeerLostError(f"generation {standing.generation} lost a rank before it had formed")
        return [
            Arrival(*json.loads(said))
            for said in self.store.multi_get([f"{here}/{rank}" for rank in range(standing.world)])
        ]

    def _form(self, arrivals: list[Arrival]) -> None:
        """Makes the process group, and gives everybody the state of the rank that has got furthest."""
        import torch.distributed as dist

        standing = self.standing
        if "nccl" in self.backend:
            device()
        self.others, self.sockets, standing.inside = sockets(), None, True
        # A connection of its own, which can be shut down while the main thread waits in it.
        prefix = f"{board(standing.generation, standing.attempt)}/group"
        store = dist.PrefixStore(prefix, connect())  # type: ignore[attr-defined]
        limit = timedelta(seconds=min(CONNECT_TIMEOUT * 2**standing.attempt, self.timeout))
        store.set_timeout(limit)
        if self._is_lost():
            raise PeerLostError(f"generation {standing.generation} lost a rank before it had formed")
        dist.init_process_group(self.backend, store=store, rank=standing.rank, world_size=standing.world, timeout=limit)
        self.sockets = sockets() - self.others
        share(self.state, arrivals, standing.rank)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.timeout))

    def _all_have_formed(self) -> bool:
        """Waits until it is known what has become of this attempt on every rank. Returns whether all may train."""
        here = board(self.standing.generation, self.standing.attempt)
        if self.store.add(f"{here}/formed", 1) == self.standing.world:
            self.store.compare_set(f"{here}/result", "", _FORMED)
        if not self._is_lost():
            result = self.store.get(f"{here}/result").decode()
            if result != _LOST:
                return bool(result == _FORMED)
        raise PeerLostError(f"generation {self.standing.generation} lost a rank while it formed")

    def _leave(self) -> None:
        """Tears down what is left of the group, so that the peers' connections close and they wake up too."""
        abort_group()
        gc.collect()
        sys.excepthook = self.excepthook  # torch wraps it anew with each process group
        self.state._clear_gradients()
        self.state._go_back()
        self.standing.leaving = False
