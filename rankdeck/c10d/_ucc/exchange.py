"""How ranks exchange data before a library connects them: through the store of `torch.distributed`. They poll the store instead of
waiting in it, because other threads need its connection too."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

from rankdeck.c10d._ucc import api

_PAUSES = (0.0002, 0.01)  # seconds between two checks: the shortest and the longest pause
_ROUND = "ucc/round"  # key of the number, counted from 0, of the round of exchanges


class MissingError(Exception):
    """Ranks did not arrive in time."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(ranks)
        self.ranks = list(ranks)


class Exchange:
    """All-gathers among the ranks of a group, in the order of the calls. `store`: torch's, with the group's prefix. `deadline`: on the
    monotonic clock."""

    def __init__(self, store: Any, rank: int, size: int, deadline: float) -> None:
        self._store, self._rank, self._size, self.deadline = store, rank, size, deadline
        self._serial = 0
        # Rounds are counted because a group may be created again with the same name, whose old keys are still in the store.
        self._round = int(store.compare_set(_ROUND, "", "0"))

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Returns the data of each rank. Raises MissingError if some have sent nothing by the deadline."""
        self._serial += 1
        self._say(self._serial, mine)
        began = time.monotonic()
        try:
            while (found := self._heard(self._serial)) is None:
                if time.monotonic() > self.deadline:
                    raise MissingError(self._silent(self._serial))
                time.sleep(min(_PAUSES[1], max(_PAUSES[0], (time.monotonic() - began) / 4)))
        finally:  # all ranks are in this round, or it has failed: ranks that come later use the next round
            self._store.compare_set(_ROUND, str(self._round), str(self._round + 1))
        return found

    def _key(self, serial: int, rank: int) -> str:
        return f"ucc/{self._round}/{serial}/{rank}"

    def _say(self, serial: int, mine: bytes) -> None:
        self._store.set(self._key(serial, self._rank), mine.hex())

    def _heard(self, serial: int) -> list[bytes] | None:
        keys = [self._key(serial, rank) for rank in range(self._size)]
        if not self._store.check(keys):
            return None
        return [bytes.fromhex(self._store.get(key).decode()) for key in keys]

    def _silent(self, serial: int) -> list[int]:
        return [rank for rank in range(self._size) if not self._store.check([self._key(serial, rank)])]

    def callbacks(self) -> Callbacks:
        """Returns the same all-gathers as callbacks for UCC."""
        return Callbacks(self)


class Callbacks:
    """All-gathers that UCC calls while it creates a context or a team. They must be kept as long as that exists."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange: Exchange | None = exchange
        self._under_way: dict[int, tuple[int, int]] = {}
        self.error: BaseException | None = None  # the first error in one of the calls
        self._functions = (
            api.AllgatherCallback(self._all_gather),
            api.RequestCallback(self._test),
            api.RequestCallback(self._free),
        )
        self.oob = api.Oob(*self._functions, None, exchange._size, exchange._rank)

    def end(self) -> None:
        """Releases the store: later calls by UCC return an error. Raises the error of an earlier call."""
        self._exchange, error, self.error = None, self.error, None
        if error is not None:
            raise error

    def _all_gather(self, source: int, target: int, size: int, info: object, request: Any) -> int:
        try:
            exchange = self._exchange
            if exchange is None:
                return api.ERROR
            exchange._serial += 1
            exchange._say(exchange._serial, ctypes.string_at(source, size))
            self._under_way[exchange._serial] = (target, size)
            request[0] = exchange._serial
        except BaseException as error:  # noqa: BLE001 - nothing may be raised into C
            self.error = error
            return api.ERROR
        return api.OK

    def _test(self, request: int) -> int:
        try:
            exchange = self._exchange
            if exchange is None:
                return api.ERROR
            if request not in self._under_way:
                return api.OK
            found = exchange._heard(request)
            if found is None:
                if time.monotonic() > exchange.deadline:
                    raise MissingError(exchange._silent(request))
                time.sleep(_PAUSES[0])
                return api.IN_PROGRESS
            target, size = self._under_way.pop(request)
            ctypes.memmove(target, b"".join(found), size * len(found))
        except BaseException as error:  # noqa: BLE001 - nothing may be raised into C
            self.error = error
            return api.ERROR
        return api.OK

    def _free(self, request: int) -> int:
        return api.OK
