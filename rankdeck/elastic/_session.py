"""Elastic training of one rank: it joins a generation, trains, and leaves the generation when a rank is lost."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from rankdeck._metrics import log
from rankdeck._objects import all_gather_objects
from rankdeck._process_group import device, init_process_group
from rankdeck._torch_compat import abort_group, can_change_timeout, change_timeout
from rankdeck.c10d._background import Background
from rankdeck.elastic import _streams
from rankdeck.elastic._leaving import (
    PeerLostError,
    abandon_mpi,
    end_group,
    leave_mpi,
    let_go,
    listeners,
    may_be_peers_fault,
    shut_down,
    sockets,
    stand_in,
    words_of,
)
from rankdeck.elastic._replacement import Handover, Replacement
from rankdeck.elastic._share import Arrival, Standing, arrival, find_source, share
from rankdeck.elastic._state import State, StateError
from rankdeck.elastic._stop import Stop
from rankdeck.elastic._store.board import Board, connect, has_ended
from rankdeck.elastic._store.news import News

if TYPE_CHECKING:
    from typing import ParamSpec  # novermin: Python 3.10

    P = ParamSpec("P")
R = TypeVar("R")

LOSS_REPORT_TIMEOUT = 60.0
"""Seconds that a rank whose collective failed waits for a report that a peer is lost. The report takes milliseconds, and some 20 s where a
supervisor or agent that was stopped, or a connection that was cut, must be replaced first. Without one, the error comes from the script."""

USUAL_REPORT_TIME = 5.0  # seconds of this wait after which the rank writes why it waits

CONNECT_TIMEOUT = 20.0
"""Seconds in which all ranks must connect and have their state in the first attempt to form a generation. Each further attempt has twice
the time. It ends attempts in which a rank died before it connected, or was delayed."""

ATTEMPTS = 4  # how many times ranks try to form a generation in which no rank is lost, before they raise the error
_AGAIN, _FORMED, _LOST, _OVER = "again", "formed", "lost", "over"  # results of an attempt, and of a generation


def run(state: State) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates the training function, which the script then calls as usual.

    Args:
        state: the parts that a new rank receives from the others.

    Returns:
        A decorator. The decorated function returns the training function's result.

    Raises:
        RuntimeError: (from the decorated function) the process group exists already, or this is a second call in a run of rankdeck.
        StateError: (from the decorated function) the state can't be given to other ranks, or they could not go on with it.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def enter(*args: P.args, **kwargs: P.kwargs) -> R:
            state._try_out()
            if "RANKDECK_GENERATION" not in os.environ or _only_together():
                return _alone(state, functools.partial(function, *args, **kwargs))
            _check_no_group()
            return _Session(state).run(functools.partial(function, *args, **kwargs))

        return enter

    return decorate


def _only_together() -> bool:
    """Whether dead ranks can't come back: MPI has no way for them, and torch's own MPI none to leave it."""
    if "mpi" not in os.environ["RANKDECK_BACKEND"]:
        return False
    from rankdeck.c10d import mpi

    return "RANKDECK_REJOIN" not in os.environ or not mpi.is_ours()


def _check_no_group() -> None:
    """Raises RuntimeError if the script has made a process group, or has trained before."""
    import torch.distributed as dist

    if _Session.has_begun:  # a new process can't know how many calls the other ranks have made
        raise RuntimeError(
            "the function that rankdeck.elastic.run decorates can be called once: put the loop over its calls (epochs) into it"
        )
    if dist.is_initialized():
        raise RuntimeError("rankdeck.elastic makes the process group itself: remove init_process_group from the script")


def _alone(state: State, function: Callable[[], R]) -> R:
    """Trains once, without rejoins. All ranks begin with the state of the rank that has trained the most."""
    import torch.distributed as dist

    made_here = not dist.is_initialized()
    if made_here:
        init_process_group()
    arrivals = all_gather_objects(Arrival(*state._progress, True, dist.get_rank()), device())
    share(state, arrivals, dist.get_rank())
    result = function()
    if made_here:
        gc.collect()  # the DDP wrapper is part of a reference cycle
        dist.destroy_process_group()
    return result


class _Session:
    """Training of this rank from its first generation to the end."""

    has_begun = False  # whether this process has begun a training

    def __init__(self, state: State) -> None:
        _Session.has_begun = True
        self.state = state
        self.timeout = float(os.environ.get("RANKDECK_TIMEOUT") or 600)
        self.standing = Standing(
            rank=int(os.environ["RANK"]),
            world=int(os.environ["WORLD_SIZE"]),
            generation=int(os.environ["RANKDECK_GENERATION"]),
        )
        self.handover = Handover(state, self.standing)
        self.stop = Stop(state, self.standing)
        self.others: set[int] = set()  # inodes of the connections that existed before this generation
        self.listeners: set[int] = set()  # inodes of the listening sockets that existed before this generation
        self.sockets: set[int] | None = set()  # inodes of the process group's sockets; None while the group forms
        self.excepthook = sys.excepthook
        if self.standing.generation > 0:
            self.handover.take()
        else:
            self.stop.take()
        log(joining=True)  # from here on this rank waits for others, first for the store
        self.store = connect()
        self.news = News(self.standing.generation, self._peer_lost)
        self.replacement = Replacement(
            state, self.standing, self.news, self.handover, connect(), self.timeout, self._interrupt
        )
        self._watch_streams()
        self.news.start()

    @property
    def has_left_mpi(self) -> bool:
        """Whether this generation is over another backend, since MPI loses all ranks of a job with one of them."""
        return "mpi" in os.environ["RANKDECK_BACKEND"] and self.standing.generation > 0

    @property
    def backend(self) -> str:
        """The backend of this generation's process group."""
        return os.environ["RANKDECK_REJOIN" if self.has_left_mpi else "RANKDECK_BACKEND"]

    @property
    def is_over_mpi(self) -> bool:
        return "mpi" in self.backend

    def _watch_streams(self) -> None:
        """Lets a step count only when the device is done with it, and no rank was lost meanwhile."""
        if "nccl" in self.backend:
            _streams.add_cuda()
        if not _streams.DEVICES:
            return
        state = self.state
        state._keeps_two, state._check = True, self._check_device
        if only_optimizers := state._changes.are_optimizers_all():
            state._changes.before_update = self._check_device
        state._keeps_steps = not only_optimizers
        if self.standing.rank == 0:
            how = (
                "each optimizer step waits for its gradients" if only_optimizers else "two copies of the state are kept"
            )
            names = ", ".join(_streams.DEVICES)
            sys.stderr.write(
                f"rankdeck: work on {names} runs on a stream: {how}, so that no lost rank leaves a wrong sum\n"
            )

    def _check_device(self) -> None:
        _streams.synchronize()
        if self._is_lost():
            raise PeerLostError(f"generation {self.standing.generation} lost a rank during this step")

    def run(self, function: Callable[[], R]) -> R:
        """Calls the function in each generation, until it returns."""
        try:
            while True:
                try:
                    self._join()
                    return self._finish(function())
                except Exception as error:
                    self.standing.inside, self.standing.leaving = False, True
                    if isinstance(error, StateError) or not self._is_peers_fault(error):
                        raise
                    said = words_of(error)
                    let_go(error)
                self._leave()
                self.stop.end_if_asked()
                step = self.state.step
                sys.stderr.write(f"rankdeck: rank {self.standing.rank} lost a peer after step {step}: {said}\n")
                log(step=step, elastic="waiting", generation=self.standing.generation)
                self._await_next()
        finally:
            self.news.close(self.store)

    def _finish(self, result: R) -> R:
        """Waits until all ranks have finished, so that one that is lost before can still get the state. Raises PeerLostError then. If the
        store has ended, no rank can get the state any more, and nobody waits."""
        import torch.distributed as dist

        self.standing.inside = False
        try:
            end = self._agree_on_end()
        except RuntimeError:
            if not has_ended():  # only the connection of this rank is lost: the others wait for it
                raise
            _streams.synchronize()
            end = _LOST if self._is_lost() else _OVER
        if end == _LOST:
            raise PeerLostError(f"generation {self.standing.generation} lost a rank before its last step was done")
        gc.collect()
        dist.destroy_process_group()
        return result

    def _agree_on_end(self) -> str:
        """Tells the others that this rank has finished. Returns how the training ends. Raises RuntimeError if the store can't be asked."""
        board = self._board()
        board.put(f"finished/{self.standing.rank}", "1")
        if board.have_all([f"finished/{rank}" for rank in range(self.standing.world)]):
            board.put_first("over", _OVER)
        return board.get("over")

    def _await_next(self) -> None:
        """Waits, without a limit, until dead ranks are restarted in a new generation."""
        try:
            self.news.await_condition(lambda: self.news.generation > self.standing.generation)
        except KeyboardInterrupt:  # the run is being stopped: end without a traceback
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        self.standing.generation = self.news.generation

    def _is_lost(self) -> bool:
        return self.news.lost >= self.standing.generation

    def _is_peers_fault(self, error: Exception) -> bool:
        # An aborted group shows as ValueError in torch's functions that look for it.
        if isinstance(error, PeerLostError) or self._is_lost():
            return True
        if not isinstance(error, RuntimeError) or not may_be_peers_fault(error):
            return False
        if self.stop.is_asked:
            return True
        if self.news.await_condition(self._is_lost, USUAL_REPORT_TIME):
            return True
        rank, said = self.standing.rank, words_of(error)
        sys.stderr.write(
            f"rankdeck: rank {rank} waits up to {LOSS_REPORT_TIMEOUT:.0f} s for a report of a lost peer: {said}\n"
        )
        return self.news.await_condition(self._is_lost, LOSS_REPORT_TIMEOUT - USUAL_REPORT_TIME)

    def _peer_lost(self, generation: int, store: Any) -> None:
        """Runs in the listening thread: interrupts the main thread if it waits for a lost peer.

        With nccl, ucc and mpi, not every rank notices that a peer is lost, so the group is aborted. Gloo's ranks notice when a connection closes
        on which they wait, but two ranks that wait for each other do so until the timeout. So the connections are shut down, which
        also interrupts ranks that wait for a stopped process.

            store: a connection of this thread, because the main thread may wait in its own.
        """
        if generation < self.standing.generation:
            return
        board = Board(store, generation, self.standing.attempt)
        for name in ("complete", "result"):
            board.put(name, _LOST)
        board.put_first("over", _LOST)  # a rank goes on if it knows that all have finished
        if self.standing.inside:
            if self.is_over_mpi:
                abandon_mpi()
            elif "nccl" in self.backend or "ucc" in self.backend:
                abort_group()
            self._interrupt()
        self.replacement.watch(generation)

    def _interrupt(self) -> None:
        if self.is_over_mpi:
            return  # a process whose connections to mpirun end would be aborted
        if self.sockets is not None:
            shut_down(self.sockets)
        else:
            shut_down(sockets() - self.others)
            if "gloo" in self.backend:
                stand_in(self.listeners, self.standing.world)

    # joining a generation

    def _join(self) -> None:
        """Waits for all ranks, makes the process group, and gives all ranks the same state. If that fails although no rank is lost, all
        ranks try again, so that a delay does not cost the others their state."""
        for attempt in range(ATTEMPTS):
            self.standing.attempt = attempt
            arrivals = self._gather()
            try:
                self._form(arrivals)
            except StateError:
                raise
            except RuntimeError as error:
                # MPI can be initialised once.
                if self._is_lost() or self.is_over_mpi or attempt + 1 == ATTEMPTS or not may_be_peers_fault(error):
                    raise
                self._board().put("result", _AGAIN)
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
            self.handover.remove()  # other ranks have the state too
        self.standing.fresh = False
        over = self.backend if self.has_left_mpi else None
        log(step=self.state.step, elastic="joined", over=over, generation=self.standing.generation)

    def _board(self) -> Board:
        return Board(self.store, self.standing.generation, self.standing.attempt)

    def _gather(self) -> list[Arrival]:
        """Meets the other ranks at the store. Returns what each has announced, by rank."""
        standing, board = self.standing, self._board()
        everyone = [str(rank) for rank in range(standing.world)]
        mine = arrival(self.state, standing)
        log(step=self.state.step, elastic="joining", generation=standing.generation)
        board.put(str(standing.rank), json.dumps(mine))
        if board.have_all(everyone):  # of several ranks that announce themselves at once, the last sees all
            board.put_first("complete", "1")
        if self._is_lost() or board.get("complete") == _LOST:
            raise PeerLostError(f"generation {standing.generation} lost a rank before it had formed")
        return [Arrival(*json.loads(said)) for said in board.get_all(everyone)]

    def _form(self, arrivals: list[Arrival]) -> None:
        """Makes the process group, and gives all ranks the state of the rank that has trained the most."""
        import torch.distributed as dist

        find_source(arrivals)  # raises on all ranks before they connect, so that none waits for another
        standing = self.standing
        if self.is_over_mpi:
            standing.inside = True
            Background.uses_callers = False
            init_process_group(timeout=self.timeout)
            share(self.state, arrivals, standing.rank)
            return
        if "nccl" in self.backend:
            device()
        self.others, self.listeners, self.sockets, standing.inside = sockets(), listeners(), None, True
        # A separate connection, which `_peer_lost` can shut down while the main thread waits in it.
        store = dist.PrefixStore(f"{self._board().prefix}/group", connect())  # type: ignore[attr-defined]
        limit = timedelta(seconds=min(CONNECT_TIMEOUT * 2**standing.attempt, self.timeout))
        store.set_timeout(limit)
        if self._is_lost():
            raise PeerLostError(f"generation {standing.generation} lost a rank before it had formed")
        timeout = limit if can_change_timeout() else timedelta(seconds=self.timeout)
        dist.init_process_group(
            self.backend, store=store, rank=standing.rank, world_size=standing.world, timeout=timeout
        )
        self.sockets = sockets() - self.others
        share(self.state, arrivals, standing.rank)
        change_timeout(self.timeout)

    def _all_have_formed(self) -> bool:
        """Waits for the result of this attempt on every rank. Returns whether all ranks may train."""
        board = self._board()
        board.put(f"formed/{self.standing.rank}", "1")
        if board.have_all([f"formed/{rank}" for rank in range(self.standing.world)]):
            board.put_first("result", _FORMED)
        if not self._is_lost() and (result := board.get("result")) != _LOST:
            return result == _FORMED
        raise PeerLostError(f"generation {self.standing.generation} lost a rank while it formed")

    def _leave(self) -> None:
        """Ends the group of this generation, and gives the state its values of the last counted step."""
        if self.is_over_mpi:
            leave_mpi()
        end_group(sockets() - self.others if self.sockets is None else self.sockets)
        self.sockets = set()
        sys.excepthook = self.excepthook  # torch wraps it with each process group
        self.state._return()
        self.state._clear_gradients()
        self.standing.leaving = False
