"""Lets torch's object collectives work where numpy is missing. `torch.distributed.rpc` starts with one of them."""

from __future__ import annotations

import importlib.util
import pickle
from typing import Any

import torch
from torch.distributed import distributed_c10d


def receive_objects_without_numpy() -> None:
    """Does nothing where numpy is found. Every rank calls it before it receives an object."""
    if importlib.util.find_spec("numpy") is None:
        # torch 2.13 reads the bytes that it has received by way of numpy.
        distributed_c10d._tensor_to_object = _object_of


def _object_of(tensor: torch.Tensor, size: int, group: object = None) -> Any:
    return pickle.loads(bytes(tensor[: int(size)].tolist()))
