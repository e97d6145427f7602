"""How ranks agree on what they are about to do, before any of them does it."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable

from mpi4py import MPI

from rankdeck.c10d._agreement import DisagreementError, NotHereError
from rankdeck.c10d._work import poll

_LENGTH = 200
"""Bytes by which a rank tells the others what it means, once they have found that they do not agree."""


class Agreement:
    """All ranks of a communicator say what they are about to do.

    An all-reduce by MAX of (s, -s, vote): where s is the same everywhere, the first two add up to nothing.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._mine, self._all = array("q", [0, 0, 0]), array("q", [0, 0, 0])
        self._arguments = ([self._mine, 3, MPI.INT64_T], [self._all, 3, MPI.INT64_T], MPI.MAX)
        self._request = MPI.REQUEST_NULL
        self._exchange: _Descriptions | None = None

    def start(self, what: str, vote: int) -> None:
        """Says it to the others."""
        mine = self._mine
        mine[0] = sign = zlib.crc32(what.encode())
        mine[1] = -sign
        mine[2] = vote
        self._request = self._comm.Iallreduce(*self._arguments)

    def reach(self, what: str, vote: int, is_over: Callable[[], bool], spin: float) -> int:
        """Says it, and waits until all others have said the same.

        Returns:
            The largest vote.

        Raises:
            NotHereError: it was over before that.
            DisagreementError: they have said something else.
        """
        self.start(what, vote)
        if not poll(self._request.Test, is_over, spin):
            raise NotHereError
        found = self._all
        if found[0] + found[1]:
            descriptions = _Descriptions(self._comm, what)
            if not poll(descriptions.are_complete, is_over):
                raise NotHereError
            raise DisagreementError(descriptions.texts())
        return found[2]

    def is_reached(self, what: str) -> bool:
        """After `start`: whether all have said the same. Raises what `reach` raises."""
        if self._exchange is None:
            if not self._request.Test():
                return False
            if not self._all[0] + self._all[1]:
                return True
            self._exchange = _Descriptions(self._comm, what)
        if self._exchange.are_complete():
            raise DisagreementError(self._exchange.texts())
        return False


class _Descriptions:
    """What each rank means, in words; asked for once it is known that they differ."""

    def __init__(self, comm: MPI.Intracomm, what: str) -> None:
        self._mine = what.encode()[:_LENGTH].ljust(_LENGTH)
        self._all = bytearray(_LENGTH * comm.size)
        self._request = comm.Iallgather([self._mine, _LENGTH, MPI.BYTE], [self._all, _LENGTH, MPI.BYTE])

    def are_complete(self) -> bool:
        return self._request.Test()

    def texts(self) -> list[str]:
        """By rank."""
        pieces = (self._all[at : at + _LENGTH] for at in range(0, len(self._all), _LENGTH))
        return [piece.decode(errors="replace").rstrip() for piece in pieces]
