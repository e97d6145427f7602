"""The state that all ranks share, and how every rank receives it from the rank that has trained the most."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from rankdeck._process_group import device
from rankdeck.elastic._broadcast import broadcast, shares_elements


class State:
    """Training state, which all ranks share and a replaced rank receives.

    Args:
        step: number of finished steps. All ranks receive the state of the rank with the most.
        **parts: objects with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, samplers), tensors, and
            values that pickle supports. Each becomes an attribute, which the script may change.

    Increment the step counter last, right after `optimizer.step()`: until then, a step counts as not done. After a rejoin, a step that
    was not done is repeated. Gradients are cleared before, but buffers that its forward pass has changed (running statistics of
    BatchNorm) are updated a second time. If that matters, or if a step does more that must not happen twice, call `commit`.
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

    if TYPE_CHECKING:  # the parts are attributes of unknown types

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def commit(self) -> None:
        """Saves a copy of the state, in which all parts belong to the same step. From then on, a rank that loses a peer returns to its last
        commit, and all ranks receive the state of the rank with the most commits."""
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
        """Clears what an interrupted step has left in `.grad`, because the repeated step would add to it."""
        for name in self._names:
            if hasattr(part := getattr(self, name), "zero_grad"):
                part.zero_grad()

    def _go_back(self) -> None:
        if self._committed is not None:
            self._take(copy.deepcopy(self._committed))

    @property
    def _progress(self) -> tuple[int, int]:
        return self._commits, self.step


def _make_buffers_writable(part: Any) -> None:
    """Copies buffers of a module whose elements share memory (`expand`): `load_state_dict` can't write into them."""
    import torch

    for module in part.modules() if isinstance(part, torch.nn.Module) else ():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.layout is torch.strided and shares_elements(buffer):
                module._buffers[name] = buffer.clone(memory_format=torch.contiguous_format)


@dataclasses.dataclass
class Standing:
    """Where this rank is in its training. Only the main thread writes it; other threads read it."""

    rank: int
    world: int
    generation: int
    attempt: int = 0
    """How many attempts to form this generation have failed."""
    fresh: bool = True
    """Whether this process has not yet trained."""
    inside: bool = False
    """Whether the main thread may be waiting for a peer."""
    leaving: bool = False
    """Whether the main thread is destroying a group, which waits for the group's operations."""


class Arrival(NamedTuple):
    """What a rank announces when it joins a generation."""

    commits: int
    step: int
    fresh: bool
    rank: int


def share(state: State, arrivals: list[Arrival], rank: int) -> None:
    """Gives all ranks the state of the rank that has trained the most; ranks in new processes count only if there are no others.

    A collective: all ranks must call it.

    Args:
        state: of this rank.
        arrivals: what every rank has announced.
        rank: this rank.
    """
    best = max(arrivals, key=lambda one: (not one.fresh, one.commits, one.step, -one.rank))
    same = {(one.commits, one.step) for one in arrivals} == {(best.commits, best.step)}
    if same and all(one.fresh for one in arrivals):
        return  # every rank has just created its own
    values = broadcast(state._values(), best.rank, mine=best.rank == rank, group_device=device())
    if best.rank != rank:
        state._take(values)
        state._commits = best.commits
        if best.commits:
            state._committed = copy.deepcopy(state._values())
