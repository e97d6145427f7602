"""How all ranks get the state of the rank that has trained the most, and know that they have it."""

import dataclasses
import itertools
from typing import Any, NamedTuple

from rankdeck._process_group import device
from rankdeck.elastic import _parts
from rankdeck.elastic._broadcast import broadcast
from rankdeck.elastic._digest import digest
from rankdeck.elastic._state import State, StateError


@dataclasses.dataclass
class Standing:
    """Where this rank is in its training. Only the main thread writes it; other threads read it."""

    rank: int
    world: int
    generation: int
    attempt: int = 0  # how many attempts to form this generation have failed
    fresh: bool = True  # whether this process has not yet trained
    inside: bool = False  # whether the main thread may be waiting for a peer
    leaving: bool = False  # whether the main thread is destroying a group, which waits for the group's operations


class Arrival(NamedTuple):
    """The announcement of a rank that joins a generation."""

    commits: int
    step: int
    fresh: bool
    rank: int
    fault: str = ""  # why its state is not that of its last counted step; empty: it is
    is_alone: bool = False  # whether its running statistics are known to be those of this rank alone
    digests: dict[str, int] = {}  # noqa: RUF012 - never written
    """Digests of the parts that it has trained, by name."""


def arrival(state: State, standing: Standing) -> Arrival:
    """Returns what this rank announces."""
    digests = {} if standing.fresh else _digests(state)
    is_alone = state._changes.has_own_statistics
    return Arrival(*state._progress, standing.fresh, standing.rank, state._fault, is_alone, digests)


def find_source(arrivals: list[Arrival]) -> Arrival:
    """Returns the rank whose state all ranks take: the rank that has trained most, among ranks with a right state. Ranks in new processes
    count only if there are no others. If several are equal, it is the first, because DDP takes buffers from rank 0. Raises StateError: no
    trained rank has a right state, or ranks with the same step have different ones."""
    trained = [one for one in arrivals if not one.fresh]
    right = [one for one in trained if not one.fault] if trained else arrivals
    if not right:
        furthest = max(trained, key=_progress)
        raise StateError(f"rank {furthest.rank} can't go on after step {furthest.step}: {furthest.fault}")
    best = max(right, key=lambda one: (*_progress(one), -one.rank))
    equal = [one for one in right if _progress(one) == _progress(best)]
    for name, mine in best.digests.items():
        if name.endswith(_BUFFERS) and best.rank == 0:
            continue
        others = [one.rank for one in equal if one.digests.get(name, mine) != mine]
        if others:
            raise StateError(f"after step {best.step}, {name} differs between rank {best.rank} and rank {others[0]}")
    if trained and best.rank and best.is_alone and len(equal) == 1:
        raise StateError(
            f"after step {best.step}, rank {best.rank} has only its own running statistics, and those of rank 0 are lost"
        )
    return best


def share(state: State, arrivals: list[Arrival], rank: int) -> None:
    """Gives all ranks the state of one of them, see `find_source`. A collective: all ranks must call it. Raises StateError: see
    `find_source`; or a part is not the same on all ranks afterwards."""
    best = find_source(arrivals)
    same = {_progress(one) for one in arrivals} == {_progress(best)}
    if same and all(one.fresh for one in arrivals):  # every rank has just created its own
        state._begin(keep=False)
        return
    mine = best.rank == rank
    values = broadcast(state._read() if mine else None, best.rank, mine=mine, group_device=device())
    if not mine:
        state._take(best.commits, values)
    del values
    _compare(_digests(state), best.rank)
    state._begin(keep=not mine)


def _progress(one: Arrival) -> tuple[int, int]:
    return one.commits, one.step


_BUFFERS = " (buffers)"


def _digests(state: State) -> dict[str, int]:
    """Digests of all parts; of modules one of their buffers, and one of the rest."""
    import torch

    found = {"step": digest(state.step)}
    for name, part in state._parts.items():
        value = _parts.read(part)
        label = f"part {name!r}"
        if isinstance(part, torch.nn.Module):
            buffers = dict(part.named_buffers())
            found[label + _BUFFERS] = digest(buffers)
            value = {key: item for key, item in value["state"].items() if key not in buffers}
        found[label] = digest(value)
    return found


def _compare(digests: dict[str, int], source: int) -> None:
    """Raises StateError on all ranks if a digest is not the same on all."""
    import torch
    import torch.distributed as dist

    mine = torch.tensor(list(digests.values()), dtype=torch.int64)
    largest = torch.stack([mine, -mine]).to(device())
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    differences: Any = (largest[0] + largest[1]).tolist()
    wrong = list(itertools.compress(digests, differences))
    if wrong:
        raise StateError(
            f"{wrong[0]} is not on all ranks what rank {source} has: load_state_dict does not restore all that state_dict holds"
        )
