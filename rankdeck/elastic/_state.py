"""The state that ranks have in common, and how every rank is given the one that has got furthest."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from rankdeck._process_group import device
from rankdeck.elastic._broadcast import broadcast, shares_elements


class State:
    """What the ranks have in common, and what a rank that takes a dead one's place must be given.

    Args:
        step: how many steps are finished; the rank with the most is the one whose state everybody gets.
        **parts: anything with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, samplers), tensors, and
            values that can be pickled. Each becomes an attribute, which may be changed at will.

    Make the step counter the last thing that a step changes, right after `optimizer.step()`: between the two, a step counts as
    not done. A step that was not done is repeated after the rejoin: gradients are cleared before, but buffers that its forward
    pass has changed (running statistics of BatchNorm) are updated a second time. Where that matters, or where a step does more
    that must not be done twice, call `commit`.
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
                _make_buffers_writable(part)
                part.load_state_dict(value)
            else:
                setattr(self, name, value)

    def _clear_gradients(self) -> None:
        """Forgets what a step that is repeated has left in `.grad`: it would be added to."""
        for name in self._names:
            if hasattr(part := getattr(self, name), "zero_grad"):
                part.zero_grad()

    def _go_back(self) -> bool:
        if self._committed is not None:
            self._take(copy.deepcopy(self._committed))
        return self._committed is not None

    @property
    def _progress(self) -> tuple[int, int]:
        return self._commits, self.step


def _make_buffers_writable(part: Any) -> None:
    """Gives each element of a module's buffers memory of its own: `load_state_dict` can't write into an expanded one."""
    import torch

    for module in part.modules() if isinstance(part, torch.nn.Module) else ():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.layout is torch.strided and shares_elements(buffer):
                module._buffers[name] = buffer.clone(memory_format=torch.contiguous_format)


class Arrival(NamedTuple):
    """What a rank says when it joins a generation."""

    commits: int
    step: int
    fresh: bool
    rank: int


def elect(arrivals: list[Arrival]) -> Arrival:
    """The rank whose state everybody gets: of those that have trained, or else of all, the one that has got furthest."""
    return max(arrivals, key=lambda one: (not one.fresh, one.commits, one.step, -one.rank))


def share(state: State, arrivals: list[Arrival], rank: int) -> None:
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
