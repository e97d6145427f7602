"""Keeps training when a rank dies: the survivors stay, a new process takes the dead rank's place, and no step is lost.

    state = rankdeck.elastic.State(model=model, optimizer=optimizer, step=0)

    @rankdeck.elastic.run(state)
    def train():
        ddp = DistributedDataParallel(state.model)
        while state.step < steps:
            ...
            state.step += 1

    train()

`train` is entered once on every rank, and again whenever the ranks have found together anew: a *generation*. Whatever holds on
to the process group (the DDP wrapper above all) has to be made inside it. Between two entries the ranks agree on who has
finished the most steps, and that rank's state is given to the others.

Outside rankdeck (plain `python`, torchrun), and under mpirun, the function is simply called, after the process group is made as
`rankdeck.init_process_group` makes it. The shape of this interface is the one that Horovod's elastic training made known.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from rankdeck._broadcast import broadcast
from rankdeck._connections import shut_down, sockets
from rankdeck._metrics import log
from rankdeck._process_group import device, init_process_group

P = ParamSpec("P")
R = TypeVar("R")

PREFIX = "rankdeck/elastic"
"""Of the keys in the run's store; the supervisor's side of them is in `store_host.py`."""

GRACE = 10.0
"""Seconds that a rank whose collective failed waits to be told that a peer is gone. It is told within milliseconds; if it is
not, no peer is gone, and the error is the script's own."""

JOIN_TIMEOUT = 20.0
"""Seconds within which ranks that are all there must be connected: one of them may die in between, which nobody else sees."""

STUCK_TIME = 3.0
"""Seconds that a main thread may sleep in a lock after its generation is lost and the next has begun. Gloo of torch 2.13 does not
tell a send that is queued when its connection closes (`Pair::signalException` passes over unbound buffers in `tx_`), which then
waits until the timeout."""

MAKES_WAY = 75
"""Exit status of a rank that can't leave a lost generation. Nothing is lost by replacing it: another rank has its state, or its
successor finds it in the file that `RANKDECK_HANDOVER` names."""

_PEER_TROUBLE = re.compile(
    r"gloo|nccl|connection (?:closed|reset|refused|was)|socket|broken pipe|timed? ?out|abort|unhandled system error"
    r"|remote process|peer|store|process group|communicator",
    re.IGNORECASE,
)
"""In the message of a RuntimeError that may be another rank's fault. Anything else is raised at once."""


class State:
    """What the ranks have in common, and what a rank that takes a dead one's place must be given.

    Args:
        step: how many steps are finished; the rank with the most is the one whose state everybody gets.
        **parts: anything with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, samplers), tensors, and
            values that can be pickled. Each becomes an attribute, which may be changed at will.

    Make the step counter the last thing that a step changes, right after `optimizer.step()`: between the two, a step counts as
    not done. Where a step does more that must not be done twice, call `commit` instead.
    """

    def __init__(self, step: int = 0, **parts: Any) -> None:
        self.step = step
        self._names = tuple(parts)
        self._commits = 0
        self._committed: dict[str, Any] | None = None
        for name, part in parts.items():
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"{name!r} can't be the name of a part of a State")
            setattr(self, name, part)

    if TYPE_CHECKING:  # the parts are attributes, whose types nobody can know here

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def commit(self) -> None:
        """Says that all of the state belongs together now. Once this was called, a rank that lost a peer goes back to its last
        commit, and the rank with the most commits is the one whose state everybody gets. Costs a copy of the state."""
        self._committed = {name: copy.deepcopy(value) for name, value in self._values().items()}
        self._commits += 1

    # what the ranks exchange

    def _values(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in self._names}
        return {
            "step": self.step,
            **{name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in parts.items()},
        }

    def _take(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            part = getattr(self, name)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(value)
            else:
                setattr(self, name, value)

    def _go_back(self) -> bool:
        if self._committed is not None:
            self._take(copy.deepcopy(self._committed))
        return self._committed is not None

    @property
    def _progress(self) -> tuple[int, int]:
        return self._commits, self.step


class PeerLostError(RuntimeError):
    """Another rank is gone, and this generation with it."""


class _Arrival(NamedTuple):
    """What a rank says when it joins a generation."""

    commits: int
    step: int
    fresh: bool
    rank: int


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
    arrivals: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(arrivals, _Arrival(*state._progress, True, dist.get_rank()))
    share(state, arrivals, dist.get_rank())
    result = function()
    if made_here:
        gc.collect()  # the DDP wrapper stands in a cycle
        dist.destroy_process_group()
    return result


class _News:
    """What the supervisor says to the ranks of an attempt, in order: that a peer is gone, that a generation begins.

    A thread of its own waits for it, since the main thread may be inside a collective that nobody will ever complete.
    """

    def __init__(self, generation: int, on_lost: Callable[[int, Any], None]) -> None:
        self.lost = -1
        """The newest generation that has lost a rank."""
        self.generation = generation
        """The newest generation that has begun."""
        self.changed = threading.Condition()
        self._on_lost = on_lost
        self._store = connect()  # here and not in the thread: it must not be taken for one of the first generation's
        threading.Thread(target=self._listen, name="rankdeck elastic", daemon=True).start()

    def _listen(self) -> None:
        number = 0
        while True:
            try:
                word, generation = json.loads(self._store.get(f"{PREFIX}/news/{number}"))
            except RuntimeError:
                return  # the store is gone, and with it every chance to find together again
            number += 1
            with self.changed:
                if word == "lost":
                    self.lost = max(self.lost, generation)
                else:
                    self.generation = max(self.generation, generation)
                self.changed.notify_all()
            if word == "lost":
                self._on_lost(generation, self._store)

    def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until something holds of the news. A signal is still acted upon meanwhile."""
        with self.changed:
            end = None if seconds is None else time.monotonic() + seconds
            while not condition():
                left = 0.5 if end is None else min(0.5, end - time.monotonic())
                if left <= 0:
                    return False
                self.changed.wait(left)
            return True


def connect() -> Any:
    """A connection to the store of this attempt, whose reads wait as long as it takes."""
    import torch.distributed as dist

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, timeout=timedelta(days=365))  # type: ignore[attr-defined]


class _Session:
    """One rank's part in an elastic training, from its first generation to the end."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.backend = os.environ["RANKDECK_BACKEND"]
        self.timeout = timedelta(seconds=float(os.environ.get("RANKDECK_TIMEOUT") or 600))
        self.generation = int(os.environ["RANKDECK_GENERATION"])
        self.fresh = True
        """Whether this process has trained with no generation yet."""
        self.torn = False
        """Whether the state is a mixture of two ranks': one that gave its own has died meanwhile."""
        self.handover = os.environ.get("RANKDECK_HANDOVER", "")
        self.inside = False
        """Whether the main thread is where it may wait for a peer."""
        self.leaving = False
        """Whether it takes a group apart, which waits for all that the group still does."""
        self.others: set[int] = set()
        """Sockets that were there before this generation's."""
        self.sockets: set[int] | None = None
        """Those of the process group; None while it forms."""
        self.excepthook = sys.excepthook
        if self.generation > 0:
            self._take_over()
        self.store = connect()
        self.news = _News(self.generation, self._peer_lost)

    def run(self, function: Callable[[], R]) -> R:
        """Calls the function in one generation after the other, until it returns."""
        import torch.distributed as dist

        while True:
            try:
                self._join()
                result = function()
                self.inside = False
                gc.collect()
                dist.destroy_process_group()
                return result
            except RuntimeError as error:
                self.inside, self.leaving = False, True
                if not self._is_peers_fault(error):
                    raise
                said = words_of(error)
                let_go(error)
            self._leave()
            self.leaving = False
            sys.stderr.write(f"rankdeck: rank {self.rank} lost a peer after step {self.state.step}: {said}\n")
            log(step=self.state.step, elastic="waiting", generation=self.generation)
            self._await_next()

    def _await_next(self) -> None:
        """Waits for as long as it takes somebody to start the dead ranks again."""
        try:
            self.news.wait(lambda: self.news.generation > self.generation)
        except KeyboardInterrupt:  # the run is being stopped; where this rank waits is nobody's concern
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        self.generation = self.news.generation

    def _is_peers_fault(self, error: RuntimeError) -> bool:
        if isinstance(error, PeerLostError) or self.news.lost >= self.generation:
            return True
        return bool(_PEER_TROUBLE.search(str(error))) and self.news.wait(
            lambda: self.news.lost >= self.generation, GRACE
        )

    def _peer_lost(self, generation: int, store: Any) -> None:
        """In the listening thread: frees the main thread, wherever it waits for a peer that is gone.

        With nccl and ucc not everybody notices that a peer is gone, so the group is aborted under the main thread. Gloo's ranks notice by
        their connections, if they wait at one that closes; two that wait for each other would do so until the timeout. So
        the connections are shut down, which also frees a rank that waits for a stopped one.
        """
        if generation < self.generation:
            return
        store.set(
            f"{PREFIX}/{generation}/complete", "lost"
        )  # over another connection: the main thread may wait in its own
        if self.inside:
            if "nccl" in self.backend or "ucc" in self.backend:
                abort_group()
            shut_down(self.sockets if self.sockets is not None else sockets() - self.others)
        threading.Thread(target=self._make_way, args=(generation,), name="rankdeck elastic exit", daemon=True).start()

    def _make_way(self, generation: int) -> None:
        """Ends this process if its main thread never leaves a lost generation; its successor finds the state that no other rank has."""
        store: Any = None
        asleep_since = time.monotonic()

        def is_bound() -> bool:
            return (self.inside or self.leaving) and self.generation == generation

        while is_bound():
            time.sleep(0.25)
            if not sleeps_in_a_lock() or self.news.generation <= generation:
                asleep_since = time.monotonic()
            elif time.monotonic() - asleep_since > STUCK_TIME:
                store = store or connect()
                if not self._is_redundant(store, self.news.generation):
                    try:
                        self._write_down()
                    except Exception as error:  # noqa: BLE001 - whatever a part's state_dict or pickle may raise
                        sys.stderr.write(
                            f"rankdeck: rank {self.rank} is stuck in a collective, and its state can't be handed over: {error}\n"
                        )
                        return
                # What was written is whole only if the main thread has slept all the while.
                if is_bound() and sleeps_in_a_lock():
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(self.handover + ".new", self.handover)
                    self._say_that_it_makes_way("is stuck in a collective")
                    os._exit(MAKES_WAY)
                with contextlib.suppress(OSError):
                    os.unlink(self.handover + ".new")
                asleep_since = time.monotonic()

    def _say_that_it_makes_way(self, why: str) -> None:
        sys.stderr.write(f"rankdeck: rank {self.rank} {why}; a new process takes its place\n")
        sys.stderr.flush()

    def _write_down(self) -> None:
        """Writes this rank's state into a file for the process that takes its place. Raises whatever writing it raises."""
        import torch

        committed = self.state._committed
        if not self.handover or self.fresh or (self.torn and committed is None):
            return  # there is nothing to lose
        values = committed if committed is not None else self.state._values()
        with open(os.open(self.handover + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save((self.state._commits, values), file)

    def _take_over(self) -> None:
        """Takes the state that the process before this one has written down, if it has."""
        import torch

        try:
            commits, values = torch.load(self.handover, weights_only=False)  # nobody else can write into a run's folder
        except FileNotFoundError:
            return
        except Exception as error:  # noqa: BLE001 - a file that was cut off makes the unpickler raise anything
            sys.stderr.write(f"rankdeck: rank {self.rank} can't read the state that it was handed over: {error}\n")
            return
        self.state._take(values)
        self.state._commits = commits
        if commits:
            self.state._committed = copy.deepcopy(values)
        self.fresh = False

    def _is_redundant(self, store: Any, generation: int) -> bool:
        """Whether a rank that has trained waits in this generation, with at least as many steps as this one."""
        for rank in range(self.world):
            key = f"{PREFIX}/{generation}/{rank}"
            if rank != self.rank and store.check([key]):
                other = _Arrival(*json.loads(store.get(key)))
                if not other.fresh and (other.commits, other.step) >= self.state._progress:
                    return True
        return False

    # finding together

    def _join(self) -> None:
        """Waits until every rank is here, makes the process group, and brings everybody to the same state."""
        import torch.distributed as dist

        arrivals = self._gather()
        best = elect(arrivals)
        if self.torn and best.fresh:
            self._say_that_it_makes_way("was given only a part of the state")
            sys.exit(MAKES_WAY)
        if "nccl" in self.backend:
            device()
        self.others, self.sockets, self.inside = sockets(), None, True
        # A connection of its own, which can be shut down while the main thread waits in it.
        store = dist.PrefixStore(f"{PREFIX}/{self.generation}/group", connect())  # type: ignore[attr-defined]
        limit = min(timedelta(seconds=JOIN_TIMEOUT), self.timeout)
        store.set_timeout(limit)
        if self.news.lost >= self.generation:
            raise PeerLostError(f"generation {self.generation} lost a rank before it had formed")
        dist.init_process_group(self.backend, store=store, rank=self.rank, world_size=self.world, timeout=limit)
        self.sockets = sockets() - self.others
        differs = (best.commits, best.step) != self.state._progress
        self.torn = self.torn or differs or (self.fresh and not best.fresh)
        share(self.state, arrivals, self.rank)
        self.torn = False
        dist.distributed_c10d._set_pg_timeout(self.timeout)
        if self.news.lost >= self.generation:
            raise PeerLostError(f"generation {self.generation} lost a rank while it formed")
        if self.generation > 0:
            with contextlib.suppress(OSError):
                os.unlink(self.handover)  # others have it too now
        self.fresh = False
        log(step=self.state.step, elastic="joined", generation=self.generation)

    def _gather(self) -> list[_Arrival]:
        """Meets the others at the store. Returns what each of them has said, by rank."""
        board = f"{PREFIX}/{self.generation}"
        mine = _Arrival(*self.state._progress, self.fresh or self.torn, self.rank)
        log(step=self.state.step, elastic="joining", generation=self.generation)
        self.store.set(f"{board}/{self.rank}", json.dumps(mine))
        if self.store.add(f"{board}/count", 1) == self.world:
            self.store.set(f"{board}/complete", "1")
        if self.news.lost >= self.generation or self.store.get(f"{board}/complete") == b"lost":
            raise PeerLostError(f"generation {self.generation} lost a rank before it had formed")
        return [
            _Arrival(*json.loads(said))
            for said in self.store.multi_get([f"{board}/{rank}" for rank in range(self.world)])
        ]

    def _leave(self) -> None:
        """Tears down what is left of the group, so that the peers' connections close and they wake up too."""
        abort_group()
        gc.collect()
        sys.excepthook = self.excepthook  # torch wraps it anew with each process group
        if self.state._go_back():
            self.torn = False


def words_of(error: BaseException) -> str:
    """The first sentence of an error, without the place in torch's sources that it begins with."""
    text = re.sub(r"^\[[^\]]*\] *", "", str(error).strip()).split("\n")[0]
    return text.split(". ")[0][:200] or type(error).__name__


def sleeps_in_a_lock() -> bool:
    """Whether the main thread of this process waits for another thread at this moment."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/wchan") as file:
            return file.read().startswith("futex")
    except OSError:
        return False


def let_go(error: BaseException) -> None:
    """Empties the frames that an exception has come through: they hold the DDP wrapper, and that holds the group."""
    seen: BaseException | None = error
    while seen is not None:
        if seen.__traceback__ is not None:
            traceback.clear_frames(seen.__traceback__)
            seen.__traceback__ = None
        seen = seen.__context__ or seen.__cause__


def abort_group() -> None:
    """Ends the process group without asking the peers."""
    import torch.distributed as dist

    if dist.is_initialized():
        try:
            dist.distributed_c10d._abort_process_group()
        except Exception:  # noqa: BLE001 - a backend that can't abort can still be destroyed
            dist.destroy_process_group()


# --- state from one rank to the others ---------------------------------------------------------------------------------


def elect(arrivals: list[_Arrival]) -> _Arrival:
    """The rank whose state everybody gets: of those that have trained, or else of all, the one that has got furthest."""
    return max(arrivals, key=lambda one: (not one.fresh, one.commits, one.step, -one.rank))


def share(state: State, arrivals: list[_Arrival], rank: int) -> None:
    """Gives everybody the state of the rank that has got furthest; a process that is new never counts as far as one that is not.

    Args:
        state: of this rank.
        arrivals: what every rank has said of its own.
        rank: this one. A collective: all ranks call it.
    """
    best = elect(arrivals)
    same = {(one.commits, one.step) for one in arrivals} == {(best.commits, best.step)}
    if same and all(one.fresh for one in arrivals):
        return  # every rank has only just made its own
    values = broadcast(state._values(), best.rank, mine=best.rank == rank, group_device=device())
    if best.rank != rank:
        state._take(values)
        state._commits = best.commits
        if best.commits:
            state._committed = copy.deepcopy(state._values())
