"""The state that all ranks share."""

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

from rankdeck.elastic import _parts
from rankdeck.elastic._broadcast import pack, unpack
from rankdeck.elastic._changes import Changes


class StateError(RuntimeError):
    """The state, or the order in which the script changes it, does not allow ranks to rejoin."""


class State:
    """Training state, which all ranks share and a replaced rank receives.

    Args:
        step: number of finished steps. All ranks receive the state of the rank with the most.
        **parts: objects with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, samplers), tensors, and
            values that pickle supports. Each becomes an attribute, which the script may change. Other attributes can't be set.

    Count a step last: make `state.step += 1` after everything that the step changes in the state, and before its next collective. Until
    then, a step counts as not done. After a rejoin, the ranks repeat such a step: gradients are cleared, and buffers of modules (running
    statistics of BatchNorm) have their values from before the step. If another part does not have its value of the last counted step,
    the ranks raise `StateError` instead. Where a step can't be counted last, call `commit` at its end.

    Raises:
        ValueError: a part can't have this name.
    """

    _parts: dict[str, Any]
    _step: int
    _changes: Changes
    _check: Callable[[], None]
    """Raises PeerLostError unless all work on streams is done, and no rank was lost meanwhile."""
    _counted: Callable[[], None]
    """Called when all parts belong to one step: at a count or, in scripts that call `commit`, at a commit."""
    _keeps_two: bool  # whether there are streams, so that the newest copy may be wrong
    _keeps_steps: bool  # whether each counted step is copied
    _commits: int
    _copies: list[tuple[int, dict[str, Any]]]  # number of commits and values, the newest last
    _is_certain: bool  # whether the newest copy is known to be right
    _fault: str  # why the state is not that of the last counted step; empty: it is

    def __init__(self, step: int = 0, **parts: Any) -> None:
        for name in parts:
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"{name!r} can't be the name of a part of a State")
        own = self.__dict__  # `__setattr__` looks for parts
        own.update(
            _parts=parts, _step=operator.index(step), _changes=Changes(parts), _check=_nothing, _counted=_nothing
        )
        own.update(_keeps_two=False, _keeps_steps=False, _commits=0, _copies=[], _is_certain=True, _fault="")

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        number = operator.index(value)  # also of numpy's and torch's integers
        if number != self._step:
            if self._keeps_two:
                self._check()
            self._step = number
            self._changes.counted()
            self._is_certain = (
                True  # a collective of this step was called, and did not report that an earlier one had failed
            )
            if self._keeps_steps and not self._commits:
                self._keep()
            if not self._commits:
                self._counted()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_parts"][name]
        except KeyError:
            raise AttributeError(f"the state has no part {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._parts:
            is_new = value is not self._parts[name]
            self._parts[name] = value
            if is_new and hasattr(value, "state_dict"):
                self._changes.hook(name, value)
        elif name == "step" or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            raise AttributeError(f"the state has no part {name!r}: name it in State(...), or other ranks do not get it")

    def commit(self) -> None:
        """Saves a copy of the state, in which all parts belong to the same step. From then on, a rank that loses a peer returns to its last
        commit, and all ranks receive the state of the rank with the most commits."""
        self._check()
        self._commits += 1
        self._keep()
        self._counted()

    # what the ranks exchange

    def _read(self) -> dict[str, Any]:
        return {"step": self.step, **{name: _parts.read(part) for name, part in self._parts.items()}}

    def _take(self, commits: int, values: dict[str, Any]) -> None:
        """Takes values of `_read`, which are this state's own from now on. Raises StateError with the part that does not accept them."""
        self.__dict__.update(_commits=commits, _step=values["step"], _fault="")
        with _blaming("does not accept what another rank has") as blame:
            for name, part in self._parts.items():
                blame.append(name)
                self._parts[name] = _parts.write(part, values[name])
        self._changes.begin()

    def _begin(self, *, keep: bool) -> None:
        """All ranks have the same state now. `keep`: it is another one than before."""
        self._changes.begin()
        if self._keeps_steps or (keep and self._commits):
            self._copies = []
            self._keep()
        self._is_certain = True

    def _keep(self) -> None:
        """Keeps a copy. Where a device works on a stream, also the one before: the new one may hold an unfinished sum."""
        older = self._copies[-1:] if self._keeps_two else []
        self._copies = [*older, (self._commits, _copy(self._read()))]
        self._is_certain = not self._keeps_two

    def _return(self) -> None:
        """Returns to the last commit, or to the last counted step. `_fault` says afterwards why that is impossible."""
        if self._copies:
            self._copies = [self._copies[-1 if self._is_certain else 0]]
            commits, values = self._copies[0]
            fault = self._changes.extra_pass()
            self._take(commits, _copy(values))
            self._fault, self._is_certain = fault, True
        else:
            self._fault = self._fault or self._changes.fault()
            self._changes.go_back()

    def _clear_gradients(self) -> None:
        """Clears the gradients of an interrupted step in `.grad`, because the repeated step would add to them."""
        for part in self._parts.values():
            if hasattr(part, "zero_grad"):
                part.zero_grad()

    @property
    def _progress(self) -> tuple[int, int]:
        return self._commits, self.step

    def _try_out(self) -> None:
        """Packs and unpacks the state, without its tensors. Raises StateError with the name of a part that can't be shared."""
        with _blaming("can't be given to other ranks") as blame:
            for name, part in self._parts.items():
                blame.append(name)
                unpack(*pack(_parts.read(part)))


@contextlib.contextmanager
def _blaming(what: str) -> Iterator[list[str]]:
    """Raises StateError for any error of a part's `state_dict`, or of pickle. The block appends the name of each part before it."""
    names: list[str] = []
    try:
        yield names
    except Exception as error:
        raise StateError(f"part {names[-1]!r} of the state {what}: {error}") from error


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    data, tensors = pack(values)
    copies: dict[str, Any] = unpack(data, [tensor.detach().clone() for tensor in tensors])
    return copies


def _nothing() -> None:
    """Nothing has to be done."""
