"""The process group over UCC: its creation, and its point-to-point transfers."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch

from rankdeck.c10d import _group
from rankdeck.c10d._operations import Operations
from rankdeck.c10d._ucc import process as ucc_process
from rankdeck.c10d._ucc.agreement import Agreement
from rankdeck.c10d._ucc.collectives import Collectives
from rankdeck.c10d._ucc.peers import PeerGoneError, Peers
from rankdeck.c10d._ucc.process import Place
from rankdeck.c10d._ucc.transfers import TAGS, Transfer

_ARRIVAL_TIME, _ARRIVAL_LOOKS = 0.1, 20
"""Seconds, and looks, that a transfer continues at least after the process at its other end has ended, because its data may have arrived.
Looks are counted too, because a busy machine may not let this process run for all of that time."""


class ProcessGroup(_group.ProcessGroup):
    """A group of ranks that communicate by UCC. `store`: torch's, with the group's prefix. `timeout`: for the creation, and for operations
    without their own. Raises RuntimeError: UCC is missing or does not work; torch.distributed.DistBackendError: members are missing."""

    NAME = "ucc"

    def __init__(self, name: str, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        seconds = timeout.total_seconds()
        process = ucc_process.join()
        self._place = place = process.form(name, store, rank, size, seconds)
        messages = Messages(place, rank)
        agreement = Agreement(place.team, place.peers, messages)

        def free() -> None:
            place.peers.close()
            agreement.free()
            place.team.free()

        operations = Operations(process, name, rank, agreement, free, seconds, place.peers.close)
        super().__init__(rank, size, Collectives(place.team), operations, messages)

    def abort(self) -> None:
        """Ends all operations with an error, without waiting for other ranks. The memory of operations that hang in UCC is not freed."""
        self._place.team.context.broken = True
        super().abort()


class Messages:
    """Point-to-point transfers over UCX; methods: see `_work.Messages`. `rank`: this rank's."""

    tags = TAGS

    def __init__(self, place: Place, rank: int) -> None:
        self._place, self._rank, self._transfers = place, rank, place.team.context.transfers

    def send(self, host: torch.Tensor, rank: int, tag: int) -> _Message:
        place = self._place
        return _Message(
            self._transfers.send(host, place.members[rank], place.number, self._rank, tag), place.peers, rank
        )

    def receive(self, host: torch.Tensor, rank: int | None, tag: int) -> _Message:
        place = self._place
        return _Message(self._transfers.receive(host, place.number, rank, tag), place.peers, rank)


class _Message:
    """A transfer over UCX, which fails if the process at its other end is gone; methods: see `_work.Request`. `rank`: at the other end;
    None: any rank, and the end of each process fails it."""

    def __init__(self, transfer: Transfer, peers: Peers, rank: int | None) -> None:
        self._transfer, self._peers, self._rank = transfer, peers, rank
        self._end: float | None = None
        self._looks = 0
        self.cancel = transfer.cancel

    @property
    def source(self) -> int:
        return self._transfer.source

    def is_done(self) -> bool:
        """Returns whether it has ended. Raises TransferError if it has failed, PeerGoneError if its peer is gone."""
        if self._transfer.is_done():
            return True
        try:
            self._peers.check(self._rank)
        except PeerGoneError:
            now = time.monotonic()
            if self._end is None:
                self._end = now + _ARRIVAL_TIME
            self._looks += 1
            if now > self._end and self._looks > _ARRIVAL_LOOKS:
                raise
        return False
