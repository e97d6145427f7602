"""Sharded checkpoints of the recipes: each rank writes its own part, in a folder that all ranks see. `torch.distributed.checkpoint`
stores whole tensors by name, and which rank wrote which part of them. So another number of ranks can load them. Its metadata is a pickle:
load only what you have written yourself."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

import rankdeck
from rankdeck._objects import broadcast_object
from rankdeck._torch_compat import receive_objects_without_numpy
from rankdeck.recipes._refusal import refuse

NAME = re.compile(r"(?:new-)?step-(\d+)")
"""Folders of checkpoints, by the step after which they were written; one that is being written is new. Nothing else is removed."""

BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
"""Stores an optimizer's state under the names of parameters: ranks need not have the same parameters."""


class ShardedCheckpoint:
    """The newest sharded checkpoint in a folder, which all ranks must see. All methods are collectives: all ranks call them."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder, self._device = folder, device
        receive_objects_without_numpy()

    def write_training(self, step: int, model: nn.Module, optimizer: Optimizer, **more: int | str) -> None:
        """Writes model, optimizer and more with `write`. Ranks may have different parameters, under different names."""
        weights, momenta = get_state_dict(model, optimizer, options=BY_NAME)
        self.write(step, {"step": step, "model": weights, "optimizer": momenta, **more})

    def read_training(self, model: nn.Module, optimizer: Optimizer, **shape: int) -> int:
        """Loads the newest checkpoint into model and optimizer. Returns its step; 0: rank 0 sees none. Raises SystemExit: the checkpoint
        can't be loaded, or is of another training; rank 0 says why and what to do."""
        weights, momenta = get_state_dict(model, optimizer, options=BY_NAME)
        state: dict[str, Any] = {"step": 0, "model": weights, "optimizer": momenta, **shape}
        if self.read(state):
            for name, value in shape.items():
                if state[name] != value:
                    refuse(
                        f"the checkpoint in {self._folder} has {name} {state[name]}, not {value}: delete it, or name another folder"
                    )
            states = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
            set_state_dict(model, optimizer, **states, options=BY_NAME)
        return int(state["step"])

    def write(self, step: int, state: dict[str, Any]) -> bool:
        """Writes a checkpoint beside the older one, and then removes that, which rank 0 reports. On a failure rank 0 says why, and the
        older one stays. `state`: tensors, sharded ones too, numbers, strings, and dictionaries and lists of these."""
        is_first = dist.get_rank() == 0
        new, final = self._folder / f"new-step-{step}", self._folder / f"step-{step}"
        if is_first:
            shutil.rmtree(new, ignore_errors=True)
        # torch synchronises the ranks before the first of them writes.
        why = self._attempt(lambda: save(state, checkpoint_id=new))
        if is_first and not why:
            try:
                shutil.rmtree(final, ignore_errors=True)
                os.replace(new, final)
            except OSError as error:
                why = str(error)
        why = broadcast_object(why, 0, self._device)
        if is_first:
            for old in self._folder.glob("*"):
                if NAME.fullmatch(old.name) and (old == new if why else old != final):
                    shutil.rmtree(old, ignore_errors=True)
        if is_first and not why:
            rankdeck.log(step=step, checkpoint=step)
        elif is_first:
            print(f"rank 0: no checkpoint of step {step}: {why}; the training goes on", file=sys.stderr)  # noqa: T201
        return not why

    def read(self, state: dict[str, Any]) -> bool:
        """Loads the newest checkpoint into the tensors of `state`, and replaces its numbers and strings. `state` has the
        structure that was written; the tensors may be sharded over another number of ranks. Raises SystemExit: the checkpoint can't be
        loaded; rank 0 says why and what to do."""
        found = [NAME.fullmatch(path.name) for path in self._folder.glob("step-*")]
        steps = [int(match[1]) for match in found if match]
        newest = broadcast_object(max(steps, default=None), 0, self._device)
        if newest is None:
            return False
        path = self._folder / f"step-{newest}"
        if why := self._attempt(lambda: load(state, checkpoint_id=path)):
            if dist.get_rank() == 0:
                print(f"{path} can't be loaded: {why}; delete it, or name another folder", file=sys.stderr)  # noqa: T201
            refuse("")
        return True

    def _attempt(self, call: Any) -> str:
        """Returns the first failure of any rank as one line; empty if there is none. torch raises it on every rank."""
        with _plain_torch():
            try:
                call()
            except CheckpointException as error:
                rank, (cause, _) = min(error.failures.items())
                lines = str(cause).strip().splitlines() or [type(cause).__name__]
                return f"rank {rank}: {lines[0]}"
        return ""


@contextlib.contextmanager
def _plain_torch() -> Iterator[None]:
    """The root logger of torch 2.13 prints the traceback of an error that is raised, too."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
