"""Agreement of the ranks of a communicator, by one non-blocking all-reduce."""

from __future__ import annotations

import zlib
from array import array

from mpi4py import MPI

from rankdeck.c10d import _agreement
from rankdeck.c10d._work import NO_VOTES, Messages, Votes


class Agreement(_agreement.Agreement):
    """Announces operations by an all-reduce (MAX) of (hash, -hash, vote, -vote): if all hashes are equal, the first two results add up to 0."""

    def __init__(self, comm: MPI.Intracomm, messages: Messages) -> None:
        super().__init__(messages, comm.rank, comm.size)
        self._comm = comm
        self._mine, self._all = array("q", [0] * 4), array("q", [0] * 4)
        self._arguments = ([self._mine, 4, MPI.INT64_T], [self._all, 4, MPI.INT64_T], MPI.MAX)
        self._request = MPI.REQUEST_NULL

    def start(self, what: str, vote: int) -> None:
        mine = self._mine
        mine[0] = sign = zlib.crc32(what.encode())
        mine[1] = -sign
        mine[2] = vote
        mine[3] = -vote
        self._request = self._comm.Iallreduce(*self._arguments)

    def _is_answered(self) -> bool:
        return self._request.Test()

    def _result(self) -> Votes | None:
        same, opposite, largest, smallest = self._all
        if same + opposite:
            return None
        return Votes(largest, -smallest) if largest or smallest else NO_VOTES
