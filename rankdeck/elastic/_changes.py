"""Watches when the parts of a state change, so that a rank knows whether its state is that of its last counted step.

A step may be interrupted at each of its collectives. The state must then be as it was when `state.step` was counted, because the step is
repeated. A rank with a wrong state takes the state of a rank that has the right one. If there is none, the ranks name the part that is at
fault, and do not go on. Nothing is copied for that but the buffers of modules.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from rankdeck._torch_compat import versions
from rankdeck.elastic._broadcast import pack
from rankdeck.elastic._digest import fingerprint
from rankdeck.elastic._parts import read


class Changes:
    """Watches the parts of one state, by name; the state writes to this dict."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts
        self.before_update: Callable[[], None] = lambda: None
        """Called before each step of an optimizer: raises if the gradients are not known to be right."""
        self.longest_pause = 0.0  # seconds between two counts
        self._counted_at: float | None = None
        self._updated = ""  # name of the optimizer that has made a step which is not counted yet
        self._carried = ""  # name of the optimizer whose gradients were kept when a step was counted
        self._keepers: set[str] = set()  # optimizers whose gradients were kept once
        self._watched: list[str] = []  # parts that may change without an optimizer's step
        self._weights: dict[str, list[Any]] = {}  # parameters of the modules among them
        self._at_count: dict[str, int] = {}  # their fingerprints when the last step was counted
        self._is_after_count = False
        """Whether a step was counted, and the backward pass of the next one has not begun."""
        self._late: dict[str, None] = {}  # parts that have changed meanwhile, in any step
        self._is_learned = False  # whether these parts have been looked for once
        self._buffers: list[tuple[Any, Any]] = []
        """Buffers, and copies of them from before the first forward pass of this step."""
        self._settings: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """Groups of parameters of optimizers, and their settings (learning rate) when the last step was counted."""
        self._statistics: Any = None  # a module with running statistics that each rank computes alone
        self._version = -1
        """torch's version of its running mean when the last step was counted: DDP writes to it before the next step."""
        self._forwards: list[int] = []  # training passes of each step of this generation
        self._has_extra_pass = False
        """Whether a generation began with a pass that changes running statistics, and trains nothing."""
        self.has_own_statistics = False  # whether it is certain that this rank computes its running statistics alone
        self._warned: set[str] = set()
        for name, part in parts.items():
            self.hook(name, part)

    def hook(self, name: str, part: Any) -> None:
        """Watches a part. Others than modules and optimizers need no hook."""
        import torch

        if isinstance(part, torch.optim.Optimizer):
            part.register_step_pre_hook(_Hook(lambda *_: self._before_update()))
            part.register_step_post_hook(_Hook(lambda *_: self._after_update(name)))
            trained = [one for one in _parameters(part) if one.requires_grad]
            for last in trained[-1:]:  # the first one that gets a gradient in a backward pass
                last.register_hook(lambda gradient: self._begin_backward())
        elif isinstance(part, torch.nn.Module) and any(True for _ in part.buffers()):
            part.register_forward_pre_hook(_Hook(lambda module, *_: self._before_forward(module)))
        self._classify()

    def _classify(self) -> None:
        import torch

        parts = self._parts
        trained = {id(one) for part in self._optimizers().values() for one in _parameters(part)}
        modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        by_optimizers = {
            name
            for name, part in modules.items()
            if any(id(one) in trained for one in part.parameters())
            and all(id(one) in trained or not one.requires_grad for one in part.parameters())
        }
        self._watched = [name for name in parts if name not in by_optimizers and name not in self._optimizers()]
        self._weights = {name: list(part.parameters()) for name, part in modules.items() if name in self._watched}
        for part in modules.values():
            for module in part.modules():
                if getattr(module, "running_mean", None) is not None and not hasattr(module, "process_group"):
                    self._statistics = module

    def are_optimizers_all(self) -> bool:
        """Whether only steps of optimizers change the tensors of the state."""
        self._classify()
        tensors = [name for name in self._watched if pack(read(self._parts[name]))[1]]
        return bool(self._optimizers()) and not tensors

    # what happens in a step

    def counted(self) -> None:
        now = time.monotonic()
        if self._counted_at is not None:
            self.longest_pause = max(self.longest_pause, now - self._counted_at)
        self._counted_at = now
        self._carried = "" if self._updated else self._optimizer_with_gradients()
        self._updated, self._is_after_count = "", True
        self._at_count = self._fingerprints()
        self._buffers, self._settings = [], self._copy_settings()
        if len(self._forwards) == 2 and self._forwards[0] > self._forwards[1] and self._statistics is not None:
            self._has_extra_pass = True
            self._warn(
                "the first step of a generation makes more training passes, which change running statistics, than others"
            )
        self._forwards = [*self._forwards, 0][-3:]
        self._version, self.has_own_statistics = self._version_of_statistics(), self._statistics is not None

    def begin(self) -> None:
        """All ranks have the same state now."""
        import torch

        self._classify()
        self._updated = self._carried = ""
        self._is_after_count, self._buffers, self._counted_at = False, [], None
        self._settings = self._copy_settings()
        self.has_own_statistics, self._forwards = False, [0]
        # DDP is going to write to the parameters of modules, with the same values.
        modules = {name for name, part in self._parts.items() if isinstance(part, torch.nn.Module)}
        self._at_count = {name: now for name, now in self._fingerprints().items() if name not in modules}

    def _begin_backward(self) -> None:
        if not self._is_after_count:
            return
        self._is_after_count, self._is_learned = False, True
        for name in self._moved():
            self._late[name] = None
            self._warn(f"part {name!r} of the state changes between `state.step += 1` and the next backward pass")

    def _before_update(self) -> None:
        self.before_update()
        self._begin_backward()

    def _after_update(self, name: str) -> None:
        self._updated = name

    def _before_forward(self, module: Any) -> None:
        """Copies buffers. DDP has just given the buffers of rank 0 to all ranks, unless it is told not to."""
        import torch

        is_compiling = getattr(torch.compiler, "is_compiling", None)
        if (is_compiling is not None and is_compiling()) or not module.training:
            return
        self._forwards[-1:] = [self._forwards[-1] + 1] if self._forwards else []
        if self._buffers:
            return
        modules = [part for part in self._parts.values() if isinstance(part, torch.nn.Module)]
        if any(part is module for part in modules):  # not a copy of it
            self._buffers = [(buffer, buffer.clone()) for part in modules for buffer in part.buffers()]
            self.has_own_statistics &= self._version == self._version_of_statistics()

    # what a rank knows when a peer is lost

    def go_back(self) -> None:
        """Restores the values that buffers and settings of optimizers had before the interrupted step."""
        import torch

        with torch.no_grad():
            for buffer, copy in self._buffers:
                buffer.copy_(copy)
        self._buffers = []
        for group, settings in self._settings:
            group.update({name: _cloned(value) for name, value in settings.items()})

    def extra_pass(self) -> str:
        """Returns why the next generation would change running statistics once more; empty: it would not."""
        if self._has_extra_pass:
            return "a pass that trains nothing changes running statistics in each generation: call eval() before it"
        if self._statistics is not None and len(self._forwards) == 2 and self._forwards[0] > 1:
            return (
                "the first step made several passes that change running statistics, and one of them may train nothing"
            )
        return ""

    def fault(self) -> str:
        """Returns why the state is not that of the last counted step; empty: it is."""
        if extra := self.extra_pass():
            return extra
        if self._updated:
            return f"part {self._updated!r} has made a step that `state.step` does not count yet"
        if self._carried:
            return f"`state.step` counts passes whose gradients part {self._carried!r} has not used yet"
        for name in self._moved():
            return f"part {name!r} has changed since `state.step` was counted"
        if self._is_after_count and self._optimizers():
            for name in self._late:
                return f"part {name!r} changes after `state.step` is counted, and may not have changed yet"
            if not self._is_learned and self._watched:
                return f"part {self._watched[0]!r} may change after `state.step` is counted: this was the first step"
        return ""

    def _moved(self) -> list[str]:
        now = self._fingerprints()
        return [name for name, before in self._at_count.items() if now.get(name) != before]

    def _fingerprints(self) -> dict[str, int]:
        return {
            name: versions(self._weights[name]) if name in self._weights else fingerprint(self._parts[name])
            for name in self._watched
        }

    def _copy_settings(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        groups = [group for part in self._optimizers().values() for group in part.param_groups]
        return [
            (group, {name: _cloned(value) for name, value in group.items() if name != "params"}) for group in groups
        ]

    def _optimizers(self) -> dict[str, Any]:
        import torch

        return {name: part for name, part in self._parts.items() if isinstance(part, torch.optim.Optimizer)}

    def _version_of_statistics(self) -> int:
        return -1 if self._statistics is None else versions([self._statistics.running_mean])

    def _optimizer_with_gradients(self) -> str:
        """Returns the optimizer that has gradients which are finite and not all 0. A scaler skips steps with others."""
        for name, part in self._optimizers().items():
            gradients = [one.grad for one in _parameters(part) if one.grad is not None]
            if name in self._keepers and gradients:
                return name
            if all(bool(one.isfinite().all()) for one in gradients) and any(bool(one.any()) for one in gradients):
                self._keepers.add(name)
                self._warn(f"`state.step` counts passes between which part {name!r} keeps its gradients")
                return name
        return ""

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            sys.stderr.write(
                f"rankdeck: {what}. If a rank is lost there, all ranks must start again: count a step last, after everything "
                "that it changes, or call state.commit() at its end\n"
            )


class _Hook:
    """A hook that copies and pickles of its module or optimizer leave out."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> None:
        self._function(*arguments)

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return ignore

    def __reduce__(self) -> str:
        return "ignore"


def ignore(*_: Any) -> None:
    """Stands in place of a hook in a copy of a module."""


def _cloned(setting: Any) -> Any:
    return setting.clone() if hasattr(setting, "clone") else setting


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
