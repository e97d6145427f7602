"""How ranks agree on what they are about to do, before any of them does it: each gathers from all a hash of it and a vote.

A gathering, and not a sum, since UCC may say of one that failed that it is done: where a rank's word is missing, its place tells.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable

from rankdeck.c10d._agreement import DisagreementError, NotHereError
from rankdeck.c10d._ucc import api
from rankdeck.c10d._ucc.context import Call, Team, UccError, make_arguments
from rankdeck.c10d._ucc.peers import Peers
from rankdeck.c10d._work import poll

_LENGTH = 200
"""Bytes by which a rank tells the others what it means, once they have found that they do not agree."""

_NOBODY = -1
"""Where a rank has said nothing. No hash is negative."""


class Agreement:
    """All ranks of a team say what they are about to do.

    Args:
        team: of the ranks.
        peers: their processes.
    """

    def __init__(self, team: Team, peers: Peers) -> None:
        self._team, self._peers = team, peers
        self._mine = (ctypes.c_int64 * 2)()
        self._all = (ctypes.c_int64 * (2 * team.size))()
        self._empty = bytes((ctypes.c_int64 * len(self._all))(*[_NOBODY] * len(self._all)))
        arguments = make_arguments(api.ALLGATHER, src=_memory(self._mine), dst=_memory(self._all), flags=api.PERSISTENT)
        self._call = Call(team, arguments, is_persistent=True)
        self._serial = 0
        self._words: _Words | None = None

    def start(self, what: str, vote: int) -> None:
        """Says it to the others."""
        self._mine[0], self._mine[1] = zlib.crc32(what.encode()), vote
        ctypes.memmove(self._all, self._empty, len(self._empty))
        self._call.post()

    def reach(self, what: str, vote: int, is_over: Callable[[], bool], spin: float) -> int:
        """Says it, and waits until all others have said the same. See `_agreement.Agreement`."""

        def is_given_up() -> bool:
            self._peers.check()
            return is_over()

        self._team.is_over = is_given_up
        self.start(what, vote)
        self._wait(self._call.is_done, is_given_up, spin)
        found = self._all[:]
        if found[::2].count(found[0]) < self._team.size:
            self._check_complete()
            self._words = words = _Words(self._team, what)  # kept with this, whoever gives up
            self._wait(words.are_complete, is_given_up, spin)
            raise DisagreementError(words.texts())
        return max(found[1::2])

    def is_reached(self, what: str) -> bool:
        """After `start`: whether all have said the same. Raises what `reach` raises."""
        if self._words is None:
            if not self._call.is_done():
                self._peers.check()
                return False
            found = self._all[::2]
            if found.count(found[0]) == self._team.size:
                return True
            self._check_complete()
            self._words = _Words(self._team, what)
        if self._words.are_complete():
            raise DisagreementError(self._words.texts())
        return False

    def free(self) -> None:
        """Gives back what it has of the library."""
        self._call.free()

    def _wait(self, is_done: Callable[[], bool], is_over: Callable[[], bool], spin: float) -> None:
        try:
            if not poll(is_done, is_over, spin):
                raise NotHereError
        except BaseException:
            self._team.context.broken = True
            raise

    def _check_complete(self) -> None:
        silent = [rank for rank, word in enumerate(self._all[::2]) if word == _NOBODY]
        if silent:
            raise UccError(f"nothing has come from {silent} though UCC says that it has")


class _Words:
    """What each rank means, in words; asked for once it is known that they differ."""

    def __init__(self, team: Team, what: str) -> None:
        self._mine = ctypes.create_string_buffer(what.encode()[:_LENGTH].ljust(_LENGTH), _LENGTH)
        self._all = ctypes.create_string_buffer(_LENGTH * team.size)
        self._call = team.call(
            api.ALLGATHER,
            src=api.BufferInfo(ctypes.addressof(self._mine), _LENGTH, api.INT8, api.HOST),
            dst=api.BufferInfo(ctypes.addressof(self._all), len(self._all), api.INT8, api.HOST),
        )

    def are_complete(self) -> bool:
        return self._call.is_done()

    def texts(self) -> list[str]:
        """By rank."""
        whole = self._all.raw
        pieces = (whole[at : at + _LENGTH] for at in range(0, len(whole), _LENGTH))
        return [piece.decode(errors="replace").rstrip() for piece in pieces]


def _memory(numbers: ctypes.Array[ctypes.c_int64]) -> api.BufferInfo:
    return api.BufferInfo(ctypes.addressof(numbers), len(numbers), api.INT64, api.HOST)
