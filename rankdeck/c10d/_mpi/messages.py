"""Point-to-point transfers over MPI. Receives are matched here and not in MPI, by matched probes: so a message of another size or dtype is
an error before anything is written. Open MPI 4.1 writes past the end of the receiver's memory if a large message is longer."""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from mpi4py import MPI

from rankdeck.c10d._arguments import DTYPES_OF_A_TAG
from rankdeck.c10d._mpi.tensors import moved
from rankdeck.c10d._tensors import DTYPES


class _Arrived(NamedTuple):
    """A message that waits for its receive."""

    message: MPI.Message
    source: int
    tag: int
    size: int  # bytes


class Messages:
    """The transfers of a group, on a communicator of their own; methods: see `_work.Messages`."""

    def __init__(self, comm: MPI.Intracomm, largest_tag: int) -> None:
        self._comm, self.tags = comm, largest_tag + 1
        self._lock = threading.Lock()
        self._arrived: list[_Arrived] = []
        self._waiting: list[_Receive] = []  # in the order of the calls
        self._status = MPI.Status()

    def send(self, host: torch.Tensor, rank: int, tag: int) -> _Send:
        return _Send(self._comm.Isend(moved(host), rank, tag))

    def receive(self, host: torch.Tensor, rank: int | None, tag: int) -> _Receive:
        receive = _Receive(self, host, rank, tag)
        with self._lock:
            for arrived in self._arrived:
                if receive.takes(arrived):
                    self._arrived.remove(arrived)
                    receive.begin(arrived)
                    return receive
            self._waiting.append(receive)
        return receive

    def progress(self) -> None:
        """Gives messages that have arrived to their receives."""
        with self._lock:
            status = self._status
            while self._waiting and (message := self._comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
                arrived = _Arrived(message, status.source, status.tag, status.Get_elements(MPI.BYTE))
                for receive in self._waiting:
                    if receive.takes(arrived):
                        self._waiting.remove(receive)
                        receive.begin(arrived)
                        break
                else:
                    self._arrived.append(arrived)

    def forget(self, receive: _Receive) -> None:
        with self._lock:
            if receive in self._waiting:
                self._waiting.remove(receive)


class _Send:
    """A message that is sent; methods: see `_work.Request`."""

    source = -1

    def __init__(self, request: MPI.Request) -> None:
        self._request = request

    def is_done(self) -> bool:
        return self._request.Test()

    def cancel(self) -> None:
        """Nothing to do: only receives are cancelled."""


class _Receive:
    """A message that is received; methods: see `_work.Request`. `rank`: the sender; None: any."""

    def __init__(self, messages: Messages, host: torch.Tensor, rank: int | None, tag: int) -> None:
        self._messages, self._host, self._rank, self._tag = messages, host, rank, tag
        self._request: MPI.Request | None = None
        self._is_cancelled = False
        self._error = ""
        self.source = -1

    def takes(self, arrived: _Arrived) -> bool:
        same_tag = arrived.tag // DTYPES_OF_A_TAG == self._tag // DTYPES_OF_A_TAG
        return same_tag and self._rank in (None, arrived.source)

    def begin(self, arrived: _Arrived) -> None:
        """Receives this message. One that does not fit goes elsewhere, so that its sender need not wait."""
        self.source = source = arrived.source
        host, number = self._host, arrived.tag % DTYPES_OF_A_TAG
        if number != self._tag % DTYPES_OF_A_TAG:
            self._error = f"rank {source} has sent {DTYPES[number - 1] if number else 'another dtype'}"
        elif arrived.size not in (host.nbytes, MPI.UNDEFINED):
            self._error = f"{arrived.size} bytes came from rank {source} for a tensor of {host.nbytes}"
        if self._error:
            self._host = host = torch.empty(arrived.size, dtype=torch.uint8)
        self._request = arrived.message.Irecv(moved(host))

    def is_done(self) -> bool:
        if self._request is None:
            self._messages.progress()
            if self._request is None:
                return self._is_cancelled
        if not self._request.Test():
            return False
        if self._error:
            raise ValueError(self._error)
        return True

    def cancel(self) -> None:
        self._messages.forget(self)
        self._is_cancelled = True
