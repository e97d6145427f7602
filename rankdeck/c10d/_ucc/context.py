"""UCC's contexts, which a set of processes creates together, their teams, and the collectives of a team.

Only one thread at a time calls the library: threads that wait take the context's lock for each check, which makes progress with
everything in the context. UCC is initialised for several threads nevertheless, because UCX checks that a single thread is always the
same. ctypes releases Python's lock meanwhile.

UCC reports success for a host collective that failed: `ucc_task_complete` overwrites its status with the result of stopping the executor
(1.3 to 1.9). The private status in the next word is right, so both are checked.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

from rankdeck.c10d._agreement import NotHereError
from rankdeck.c10d._ucc import api
from rankdeck.c10d._ucc.exchange import Exchange
from rankdeck.c10d._ucc.library import Library
from rankdeck.c10d._ucc.transfers import Transfers

_API = (1, 3)  # the version of the interface in `api`
_LAST_TEAM = (1 << 15) - 1  # largest team number that UCC accepts from its user
_CHECKS_PER_CLOCK = 64  # checks of a collective between two calls of `is_over`, which reads the clock
_kept: list[object] = []  # memory that UCC may still write to, and callbacks that it may still call


class UccError(RuntimeError):
    """An error from UCC."""


class Context:
    """A UCC context, in which its processes create teams. `token`: token of the store in which its teams are numbered. `members`: names of
    the processes, in order. Raises MissingError: processes are missing; UccError: from UCC."""

    def __init__(
        self, library: Library, name: str, token: str, members: tuple[str, ...], rank: int, exchange: Exchange
    ) -> None:
        self.name, self.token, self.members = name, token, members
        self.lock = threading.Lock()
        self.broken = False  # whether an operation hangs in it: no new team uses it
        self._functions = functions = library.functions
        api.declare(functions, api.SIGNATURES)
        self._status = functions.ucc_status_string
        self._progress = functions.ucc_context_progress
        self._handle = ctypes.c_void_p()
        callbacks = exchange.callbacks()
        _kept.append(callbacks)
        with self.lock:
            config, lib, settings = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
            self.check("ucc_lib_config_read", functions.ucc_lib_config_read(None, None, config))
            threads = api.LibParams(mask=api.LIB_THREAD_MODE, thread_mode=api.THREAD_MULTIPLE)
            self.check("ucc_init", functions.ucc_init_version(*_API, threads, config, lib))
            functions.ucc_lib_config_release(config)
            self.check("ucc_context_config_read", functions.ucc_context_config_read(lib, None, settings))
            # Creating teams uses the store, whose keys have the group's name, so that other threads may create teams meanwhile.
            self.check("INTERNAL_OOB", functions.ucc_context_config_modify(settings, None, b"INTERNAL_OOB", b"0"))
            params = api.ContextParams(mask=api.CONTEXT_TYPE | api.CONTEXT_OOB, type=api.SHARED, oob=callbacks.oob)
            try:
                status = functions.ucc_context_create(lib, params, settings, self._handle)
            finally:
                callbacks.end()
            self.check("ucc_context_create", status)
            functions.ucc_context_config_release(settings)
        self.transfers = Transfers(library, rank, exchange, self.lock)

    def check(self, what: str, status: int) -> None:
        if status < 0:
            raise UccError(f"{what}: {self._status(status).decode()}")

    def progress(self) -> None:
        """Makes progress with all operations. The caller holds the lock."""
        self._progress(self._handle)


class Team:
    """A UCC team: some of the context's processes. Raises MissingError if processes are missing, and errors of UCC as UccError."""

    def __init__(self, context: Context, number: int, rank: int, size: int, exchange: Exchange) -> None:
        self.context, self.rank, self.size = context, rank, size
        self.is_over: Callable[[], bool] = lambda: False
        """Returns whether to give up the running collective; may raise the reason."""
        self.holds: list[object] = []
        """Memory of the next or running collective, because UCC keeps only addresses."""
        self._handle = ctypes.c_void_p()
        callbacks = exchange.callbacks()
        _kept.append(callbacks)
        functions = context._functions
        params = api.TeamParams(
            mask=api.TEAM_EP | api.TEAM_EP_RANGE | api.TEAM_OOB | api.TEAM_ID,
            ep=rank,
            oob=callbacks.oob,
            id=1 + number % _LAST_TEAM,
        )
        try:
            with context.lock:
                status = functions.ucc_team_create_post(context._handle, 1, params, self._handle)
                context.check("ucc_team_create_post", status)
            status = api.IN_PROGRESS
            while status == api.IN_PROGRESS:
                with context.lock:
                    status = functions.ucc_team_create_test(self._handle)
                    context.progress()
        finally:
            callbacks.end()
        context.check("ucc_team_create_test", status)

    def call(self, coll_type: int, **arguments: object) -> Call:
        """Starts a collective. `arguments`: fields of ucc_coll_args_t; `src` and `dst` as BufferInfo or BufferInfoV."""
        return Call(self, make_arguments(coll_type, **arguments))

    def run(self, coll_type: int, **arguments: object) -> None:
        """Runs a collective for which all ranks are ready. Raises NotHereError: `is_over` returned True before it was done. Raises
        UccError: it has failed."""
        call = None
        try:
            call = self.call(coll_type, **arguments)
            while not any(call.is_done() for _ in range(_CHECKS_PER_CLOCK)):
                if self.is_over():
                    raise NotHereError
        except BaseException:
            self.context.broken = True
            _kept.append((call, tuple(self.holds)))
            raise
        finally:
            self.holds.clear()

    def free(self) -> None:
        """Destroys the team, which all ranks have left."""
        status = api.IN_PROGRESS
        while status == api.IN_PROGRESS:
            with self.context.lock:
                status = self.context._functions.ucc_team_destroy(self._handle)
                self.context.progress()
        self.context.check("ucc_team_destroy", status)


class Call:
    """A collective in progress. `is_persistent`: whether `post` starts it, any number of times."""

    def __init__(self, team: Team, arguments: api.CollArgs, is_persistent: bool = False) -> None:
        self._context, self._arguments, self._is_persistent = team.context, arguments, is_persistent
        functions = self._context._functions
        self._post, self._finalize = functions.ucc_collective_post, functions.ucc_collective_finalize
        handle = ctypes.c_void_p()
        with self._context.lock:
            status = functions.ucc_collective_init(arguments, handle, team._handle)
        self._context.check("ucc_collective_init", status)
        self._handle = handle
        self._words = (ctypes.c_int32 * 2).from_address(handle.value or 0)
        if not is_persistent:
            self.post()

    def post(self) -> None:
        with self._context.lock:
            status = self._post(self._handle)
        self._context.check("ucc_collective_post", status)

    def is_done(self) -> bool:
        """Returns whether it has ended; if not, it yields the processor core first. Raises UccError if it has failed."""
        with self._context.lock:
            if self._words[0] == api.IN_PROGRESS:
                self._context.progress()
            is_done = self._words[0] != api.IN_PROGRESS
            worst = min(self._words)
            if is_done and not self._is_persistent:
                self._finalize(self._handle)
        if is_done:
            self._context.check("the collective", worst)
        else:
            os.sched_yield()
        return is_done

    def free(self) -> None:
        """Frees a persistent collective, which is not running."""
        with self._context.lock:
            self._finalize(self._handle)


def make_arguments(coll_type: int, **arguments: object) -> api.CollArgs:
    """Returns ucc_coll_args_t. `src` and `dst` are BufferInfo or BufferInfoV."""
    made = api.CollArgs(coll_type=coll_type)
    for name, value in arguments.items():
        if name in ("src", "dst"):
            setattr(getattr(made, name), "info_v" if isinstance(value, api.BufferInfoV) else "info", value)
        else:
            setattr(made, name, value)
    if made.flags:
        made.mask |= api.ARGS_FLAGS
    return made
