"""The process-wide state of groups over UCC: how groups form, the background thread, and the end of the process."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import uuid
from types import TracebackType
from typing import Any, NamedTuple

import torch.distributed as dist

from rankdeck.c10d._background import Background, name_ranks
from rankdeck.c10d._operations import Operations
from rankdeck.c10d._ucc import library as ucc_library
from rankdeck.c10d._ucc.context import Context, Team
from rankdeck.c10d._ucc.exchange import Exchange, MissingError
from rankdeck.c10d._ucc.peers import Peers, name_process
from rankdeck.c10d._work import poll

_LEAVE_TIMEOUT = 5.0
"""Seconds that an ending process waits for other ranks to leave its groups. Messages that it has sent arrive meanwhile."""

_FAILED_LEAVE_TIMEOUT = 0.5  # for a process that ends with an exception


_TOKEN, _TEAMS = "rankdeck/ucc/store", "rankdeck/ucc/teams"
"""Keys in the root of the store: its name, set by the first process, and the number of teams of each context."""


class Place(NamedTuple):
    """A group's resources in UCC."""

    team: Team
    number: int  # number of the group in its context
    members: list[int]  # the context's ranks of the group's ranks
    peers: Peers


class Process(Background):
    """The contexts and the background thread of this process. Raises LibraryError if UCC can't be loaded."""

    def __init__(self) -> None:
        self._library = ucc_library.load()
        self._name = uuid.uuid4().hex
        self._contexts: list[Context] = []
        self._made = 0
        self._is_failing = False
        super().__init__("rankdeck ucc")
        self._excepthook = sys.excepthook
        sys.excepthook = self._see_exception
        atexit.register(self._end)

    def form(self, name: str, store: Any, rank: int, size: int, timeout: float) -> Place:
        """Creates a team. All members must call this, and no other ranks.

        Args:
            store: torch's, with the group's prefix.
            timeout: seconds within which all members must call this.

        Raises:
            torch.distributed.DistBackendError: members are missing; the message names them.
            UccError, TransferError: from the libraries.
        """
        try:
            return self._form(Exchange(store, rank, size, time.monotonic() + timeout), store, rank, size)
        except MissingError as error:
            raise dist.DistBackendError(
                f"process group {name!r} could not be made: {name_ranks(error.ranks)} did not come within {timeout:g} s"
            ) from None

    def _form(self, exchange: Exchange, store: Any, rank: int, size: int) -> Place:
        root = _root(store)
        token = root.compare_set(_TOKEN, "", self._name).decode()
        with self._lock:
            self._contexts = [one for one in self._contexts if not one.broken]
            usable = {one.name: one for one in self._contexts if one.token == token}
            self._made += 1
            made = self._made
        mine = [self._name, name_process(), made, list(usable)]
        said = [json.loads(text) for text in exchange.all_gather(json.dumps(mine).encode())]
        names = tuple(str(one[0]) for one in said)
        common = set.intersection(*(set(one[3]) for one in said))
        shared = (usable[name] for name in said[0][3] if name in common)  # in the same order on every rank
        context = next((one for one in shared if set(names) <= set(one.members)), None)
        if context is None:
            context = Context(self._library, f"{names[0]} {said[0][2]}", token, names, rank, exchange)
            with self._lock:
                self._contexts.append(context)
        number = root.add(f"{_TEAMS}/{context.name}", 1) if rank == 0 else 0
        number = int(exchange.all_gather(str(number).encode())[0])
        team = Team(context, number, rank, size, exchange)
        members = [context.members.index(name) for name in names]
        return Place(team, number, members, Peers({other: str(one[1]) for other, one in enumerate(said)}))

    # the background

    def _check(self, now: float) -> None:
        super()._check(now)
        with self._lock:
            contexts = [context for context in self._contexts if not context.broken]
        for (
            context
        ) in contexts:  # over TCP, a message may still be in progress when its collective is done on this rank
            with context.lock:
                context.progress()

    # the end

    def _see_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Replaces `sys.excepthook`: shortens the wait at the end of a process that fails."""
        self._is_failing = True
        self._excepthook(kind, error, trace)

    def _end(self) -> None:
        """Runs at the exit of the interpreter: tells the other ranks that this rank leaves."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            members = tuple(self._members)
        for member in members:
            if self._is_failing and isinstance(member, Operations) and member.is_busy():
                member.abort()
            member.shutdown()
        end = time.monotonic() + (_FAILED_LEAVE_TIMEOUT if self._is_failing else _LEAVE_TIMEOUT)
        poll(lambda: not self._leaving, lambda: time.monotonic() > end)
        self._over = True
        self._wake()
        self._thread.join(_LEAVE_TIMEOUT)


def _root(store: Any) -> Any:
    """Returns the store below all prefixes."""
    while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]
        store = store.underlying_store
    return store


_process: Process | None = None
_starting = threading.Lock()


def join() -> Process:
    """Returns this process's state, which the first call creates. Raises LibraryError: UCC can't be loaded. Raises RuntimeError: this
    process was forked from a rank."""
    global _process
    if _process is not None and _process._pid != os.getpid():
        raise RuntimeError("this process was forked from a rank, and can't be one itself: start it with spawn")
    with _starting:
        if _process is None:
            _process = Process()
        return _process
