"""A `torch.distributed.ProcessGroup` without its collectives: its name, its transfers, and its end."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rankdeck._torch_compat import c10d_library
from rankdeck.c10d import _tensors
from rankdeck.c10d._arguments import check_rank, describe, full_tag, only, operation
from rankdeck.c10d._collectives import Collectives
from rankdeck.c10d._operations import Operations
from rankdeck.c10d._tensors import Staged, Tensors
from rankdeck.c10d._work import Messages, Together, Votes, Work

torch_options = c10d_library()


def nothing(votes: Votes) -> None:
    """The action of a barrier: the agreement before it is enough."""


class GroupBase(dist.ProcessGroup):
    """The methods that torch needs of every process group. Arguments: see `_group.ProcessGroup`."""

    NAME = ""  # name of the backend

    def __init__(
        self,
        rank: int,
        size: int,
        collectives: Collectives,
        operations: Operations,
        messages: Messages,
        takes_cuda: bool = False,
    ) -> None:
        # torch's stubs know only the constructor with a store, which classes written in Python can't use.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._rank, self._world = rank, size  # the methods of torch take a microsecond
        self._description = ""
        self._collectives, self._reduction = collectives, collectives.reduction
        self._operations, self._messages = operations, messages
        self._submit = operations.submit
        self._takes_cuda = takes_cuda

    @functools.cached_property
    def twin(self) -> Any:
        """A plain group of torch's, whose methods call torch's operators: see `_arguments`."""
        return dist.ProcessGroup(self._rank, self._world)  # type: ignore[call-arg]

    # names and settings

    def getBackendName(self) -> str:
        return self.NAME

    def getGroupName(self) -> str:
        return self._operations.name

    def getGroupDesc(self) -> str:
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._operations.name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    setGroupName = _set_group_name
    setGroupDesc = _set_group_desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        self._operations.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout
    supports_splitting = supports_coalescing = supports_time_estimate = False

    @property
    def options(self) -> Any:
        """Backend and timeout, as torch's own groups have them."""
        return torch_options.Backend.Options(self.NAME, timedelta(seconds=self._operations.timeout))

    def _get_sequence_number_for_group(self) -> int:
        return self._operations.begun

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: every group counts from 0."""

    # point to point

    @operation("send")
    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> Work:
        check_rank(dstRank, self._world)
        host = self._readable(only(tensors)).host
        full = full_tag(tag, host.dtype, self._messages.tags)
        what = f"send({describe(tensors)}, to rank {dstRank}, tag {tag})"
        return self._operations.transfer(what, None, host, lambda: self._messages.send(host, dstRank, full))

    @operation("recv")
    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> Work:
        return self._receive_from(tensors, check_rank(srcRank, self._world), tag, f"rank {srcRank}")

    @operation("recv_anysource")
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Receives a tensor from the first rank that sends; the work's `_source_rank` returns which."""
        return self._receive_from(tensors, None, tag, "any rank")

    recvAnysource = recv_anysource

    def _receive_from(self, tensors: Tensors, rank: int | None, tag: int, whom: str) -> Work:
        target = self._writable(only(tensors))
        full = full_tag(tag, target.host.dtype, self._messages.tags)
        what = f"recv({describe(tensors)}, from {whom}, tag {tag})"
        return self._operations.transfer(
            what, target, target.host, lambda: self._messages.receive(target.host, rank, full)
        )

    # several operations as one

    def _start_coalescing(self, device: torch.device) -> None:
        self._operations.begin_together()

    def _end_coalescing(self, device: torch.device) -> Together:
        return self._operations.end_together()

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits until all ranks call this. `timeout`: the longest wait; None: the group's timeout. `wait_all_ranks`: not
        used; the error names all missing ranks. Raises torch.distributed.DistBackendError: ranks are missing. The group can't be
        used after that."""
        options = torch_options.BarrierOptions()
        if timeout is not None:
            options.timeout = timeout
        self._submit("monitored_barrier()", nothing, [], options).wait()

    # the end

    def shutdown(self) -> None:
        self._operations.shutdown()

    def abort(self) -> None:
        self._operations.abort()

    # memory of the arguments

    def _readable(self, tensor: torch.Tensor) -> Staged:
        return _tensors.readable(tensor, self._takes_cuda)

    def _writable(self, tensor: torch.Tensor) -> Staged:
        return _tensors.writable(tensor, self._takes_cuda)
