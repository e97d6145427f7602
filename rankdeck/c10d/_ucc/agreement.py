"""Agreement of the ranks of a team: each gathers a hash of the operation and a vote from all ranks. An all-gather and not a reduction,
because UCC may report a failed collective as done: the place of a rank whose data is missing shows it."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable

from rankdeck.c10d import _agreement
from rankdeck.c10d._ucc import api
from rankdeck.c10d._ucc.context import Call, Team, UccError, make_arguments
from rankdeck.c10d._ucc.peers import Peers
from rankdeck.c10d._work import Messages, Votes

_MISSING = -1
"""In the place of a rank whose data has not arrived. No hash is negative."""


class Agreement(_agreement.Agreement):
    """Lets all ranks of a team announce an operation. Raises PeerGoneError if a rank's process has ended meanwhile."""

    def __init__(self, team: Team, peers: Peers, messages: Messages) -> None:
        super().__init__(messages, team.rank, team.size)
        self._team, self._peers = team, peers
        self._mine = (ctypes.c_int64 * 2)()
        self._all = (ctypes.c_int64 * (2 * team.size))()
        self._empty = bytes((ctypes.c_int64 * len(self._all))(*[_MISSING] * len(self._all)))
        source, target = (
            api.BufferInfo(ctypes.addressof(numbers), len(numbers), api.INT64, api.HOST)
            for numbers in (self._mine, self._all)
        )
        arguments = make_arguments(api.ALLGATHER, src=source, dst=target, flags=api.PERSISTENT)
        self._call = Call(team, arguments, is_persistent=True)

    def start(self, what: str, vote: int) -> None:
        self._mine[0], self._mine[1] = zlib.crc32(what.encode()), vote
        ctypes.memmove(self._all, self._empty, len(self._empty))
        self._call.post()

    def reach(self, what: str, vote: int, is_over: Callable[[], bool], spin: float) -> Votes:
        def is_given_up() -> bool:
            self._peers.check()
            return is_over()

        self._team.is_over = is_given_up
        try:
            return super().reach(what, vote, is_given_up, spin)
        except _agreement.SharedError:
            raise
        except BaseException:
            self._team.context.broken = True
            raise

    def _is_answered(self) -> bool:
        return self._call.is_done()

    def is_reached(self, what: str) -> bool:
        if super().is_reached(what):
            return True
        if self._texts is None:
            self._peers.check()
        return False

    def _result(self) -> Votes | None:
        found = self._all[:]
        hashes = found[::2]
        if hashes.count(hashes[0]) == self._team.size and hashes[0] != _MISSING:
            return Votes(max(found[1::2]), min(found[1::2]))
        silent = [rank for rank, value in enumerate(hashes) if value == _MISSING]
        if silent:
            raise UccError(f"UCC reports success, but the data of ranks {silent} is missing")
        return None

    def free(self) -> None:
        self._call.free()
