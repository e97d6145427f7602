"""The operations of one group: their order and threads, their deadlines, and the effect of a failure.

Every collective has two steps. First the ranks agree, by a small non-blocking exchange that is polled until the deadline, that all of
them are ready for the same operation. Then the collective itself runs, in the library's fastest blocking way, which no longer has to
wait for a rank. So a timeout is raised where the script waits, ranks that call different collectives get an error instead of hanging,
and waiting for a late rank uses little processor time.

Collectives run one after the other: in a thread of the group, or in the caller's if the caller waits and nothing is queued.
Point-to-point transfers are independent of them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from rankdeck._torch_compat import inference_guard
from rankdeck.c10d._agreement import ASKING_TIME, LEAVES, Agreement, NotHereError, SharedError
from rankdeck.c10d._background import Background
from rankdeck.c10d._tensors import Staged, Tensors
from rankdeck.c10d._transfers import Transfer
from rankdeck.c10d._work import SPIN_TIME, Operation, Request, Together, Votes, Work, settle_callbacks

_BACKGROUND_SPIN = 0.00005
"""Seconds that the group's own thread polls without a pause. Short, because the script computes meanwhile."""

_REPORT_TIME = ASKING_TIME + 1.0
"""Seconds after the deadline in which the waiting thread reports a timeout. After them, the background thread does."""

_DRAIN_TIME = 10.0  # seconds that a leaving rank waits until others have received its messages

_DRAIN_PAUSE = 0.001

_InferenceMode = inference_guard()

_kept: list[object] = []  # buffers of failed operations, to which the library may still write


class Operations:
    """Operations of a group. `free`: frees the group's resources in the library, after all ranks have left it. `timeout`: seconds, for
    operations without their own. `give_up`: frees as much as possible if ranks will never leave; may be called again."""

    def __init__(
        self,
        background: Background,
        name: str,
        rank: int,
        agreement: Agreement,
        free: Callable[[], None],
        timeout: float,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.timeout = timeout
        self.begun = 0  # number of collectives that have been started, whether ended or not
        self._background = background
        self._rank = rank
        self._agreement, self._roll_call = agreement, agreement.roll_call
        self._free, self._give_up = free, give_up
        self._failure: Exception | None = None
        self._leaving = False
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._pending: dict[int, Work] = {}
        self._unfinished = 0  # number of pending collectives
        self._running: Operation | None = None
        self._deadline = 0.0  # of the running collective
        self._together: list[Work] | None = None
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"rankdeck {name}", daemon=True)
        self._thread.start()
        background.threads.add(self._thread)
        background.add(self)

    def waited(self) -> float:
        """Seconds that this rank has waited for others in collectives; 0 for a group that lacks ranks: those can't be compared."""
        return self._agreement.waited if self._agreement.size == int(os.environ.get("WORLD_SIZE", 0)) else 0.0

    def check_usable(self, what: str) -> None:
        """Raises the reason if the group can't be used any more."""
        if self._failure is not None:
            raise self._refusal(what)

    def _refusal(self, what: str) -> Exception:
        return dist.DistBackendError(f"{what}: process group {self.name!r} can't be used any more: {self._failure}")

    # collectives

    def submit(
        self,
        what: str,
        action: Callable[[Votes], None],
        outputs: Tensors,
        opts: Any,
        targets: Sequence[Staged] = (),
        vote: int = 0,
    ) -> Work:
        """Runs a collective immediately if the caller waits for it and nothing is queued; otherwise queues it. `what`: the text that all
        ranks must agree on. `opts`: torch's options, with `timeout` and `asyncOp`. `targets`: memory that goes to callers' tensors after
        the action."""
        given = opts.timeout.total_seconds()
        operation = Operation(what, action, outputs, given if given > 0 else self.timeout, targets, vote)
        waited_for = not getattr(opts, "asyncOp", True) and self._together is None and self._background.uses_callers
        with self._lock:
            if self._failure is not None:
                raise self._refusal(what)
            at_once = waited_for and not self._unfinished
            self._unfinished += 1
            self.begun += 1
            self._pending[id(operation)] = operation
            if at_once:
                self._turn.acquire()
            else:
                self._queue.put(operation)
        if at_once:
            operation.in_caller = True
            try:
                self._run(operation, SPIN_TIME)
            finally:
                self._turn.release()
            if operation.error is not None:
                raise operation.error
        elif self._together is not None:
            self._together.append(operation)
        return operation

    def _serve(self) -> None:
        """Runs queued collectives, in the group's thread."""
        while True:
            operation = self._queue.get()
            if operation is None:
                return
            with self._turn:
                if not operation.is_completed():
                    self._run(operation, _BACKGROUND_SPIN)
            del operation

    def _run(self, operation: Operation, spin: float) -> None:
        """Runs a collective. Any error fails the group, because ranks may no longer be at the same operation."""
        self._running = operation
        try:
            self._deadline = operation.deadline
            votes = self._agreement.reach(operation.what, operation.vote, self._is_over, spin)
            with _InferenceMode(True):
                operation.action(votes)
                for target in operation.targets:
                    target.give_back()
        except SharedError as error:
            self._fail(self._explain(operation, error), is_shared=True)
        except NotHereError:
            absent = "" if self._failure is not None else self._roll_call.absent()
            self._fail(self._explain(operation, NotHereError(absent)))
        except Exception as error:  # noqa: BLE001 - the other ranks do not see it, whatever it is
            self._fail(self._explain(operation, error))
        except BaseException:
            self._fail(dist.DistBackendError(f"{operation.what} was interrupted"))
            raise
        else:
            with self._lock:
                self._unfinished -= 1
                self._pending.pop(id(operation), None)
            operation.finish()
        finally:
            self._running = None

    def _is_over(self) -> bool:
        return self._failure is not None or time.monotonic() > self._deadline

    # point to point

    def transfer(self, what: str, target: Staged | None, host: torch.Tensor, start: Callable[[], Request]) -> Work:
        """Starts to send or receive immediately, in the order of the calls. `target`: the tensor that a receive fills; None: this is a
        send. `host`: the memory to send or to receive into."""
        self.check_usable(what)
        transfer = Transfer(what, target, host, start(), self.timeout, self._end_transfer)
        with self._lock:
            self._pending[id(transfer)] = transfer
        if self._together is not None:
            self._together.append(transfer)
        self._background.attend(transfer)
        return transfer

    def _end_transfer(self, transfer: Work, error: Exception | None) -> None:
        if error is not None:
            self._fail(self._explain(transfer, error))
            return
        with self._lock:
            self._pending.pop(id(transfer), None)
        transfer.finish()

    # several as one

    def begin_together(self) -> None:
        self._together = []

    def end_together(self) -> Together:
        works, self._together = self._together or [], None
        return Together(works)

    # failures

    def _explain(self, work: Work, error: Exception) -> Exception:
        if self._failure is not None:
            return self._failure
        where = f"{work.what} on rank {self._rank} of process group {self.name!r}"
        if isinstance(error, NotHereError):
            return dist.DistBackendError(
                ": ".join(filter(None, (where, f"the timeout of {work.seconds:g} s is over", str(error))))
            )
        explained = dist.DistBackendError(f"{where} failed: {error}")
        explained.__cause__ = error
        return explained

    def fail(self, why: str) -> Exception:
        """Fails the group. Returns the error for the caller to raise."""
        self._fail(dist.DistBackendError(f"process group {self.name!r}: {why}"))
        return self._failure or RuntimeError(why)

    def _fail(self, error: Exception, is_shared: bool = False) -> None:
        """Fails the group: all operations end with this error, and no new ones start. `is_shared`: on all ranks, so that nothing of the
        library is under way but transfers."""
        with self._lock:
            if self._failure is None:
                self._failure = error
                if not is_shared or any(work.is_transfer for work in self._pending.values()):
                    self._background.see_trouble(str(error))
            pending, self._pending = tuple(self._pending.values()), {}
        _kept.extend((pending, self._agreement))
        for work in pending:
            work.finish(self._failure)

    def check_deadlines(self, now: float) -> None:
        """Answers ranks that ask for this one. Fails the group if an operation is overdue that no waiting thread reports: it is queued, or
        hangs inside the library."""
        self._roll_call.answer()
        with self._lock:
            pending = tuple(self._pending.values())
        for work in pending:
            if now > work.deadline + _REPORT_TIME:
                running = self._running
                self._fail(self._explain(work, NotHereError()))
                if running is not None and running.in_caller:
                    self._background.see_hang(str(self._failure))

    def is_busy(self) -> bool:
        return bool(self._pending)

    def under_way(self) -> tuple[Work, ...]:
        """Returns pending operations, the oldest first. Takes no lock, so that it answers while others hang."""
        return tuple(self._pending.values())

    def see_fork(self) -> None:
        """Runs in a forked child. Takes no lock, because another thread may have held it during the fork."""
        self._failure = dist.DistBackendError("this process was forked from a rank, and is none itself")

    # the end

    def shutdown(self) -> None:
        """Leaves the group after all operations have ended. Does not wait for other ranks. Its resources in the library are freed when
        all ranks have left."""
        with self._lock:
            if self._leaving:
                return
            self._leaving = True
        end = time.monotonic() + _DRAIN_TIME
        while self._failure is None and self._pending:
            self._drain(time.monotonic() > end)
        with self._lock:
            failed, self._failure = self._failure, self._failure or dist.DistBackendError("it was destroyed")
        self._queue.put(None)
        if failed is None:
            self._thread.join()
            settle_callbacks(_DRAIN_TIME)
            self._agreement.start(LEAVES, 0)
            self._background.leave(self)
        else:
            self._background.forget(self)
            self._end_failed()

    def _drain(self, is_over: bool) -> None:
        """Lets pending operations end; cancels receives that nobody waits for."""
        with self._lock:
            works = tuple(self._pending.values())
        for work in works:
            if isinstance(work, Transfer):
                work.give_up()
                if is_over and not work.is_completed():
                    self.fail(f"{work.what} was not taken within {_DRAIN_TIME:g} s after this rank came to its end")
        time.sleep(_DRAIN_PAUSE)

    def abort(self) -> None:
        self._fail(dist.DistBackendError(f"process group {self.name!r} was aborted"))
        self._leaving = True
        self._queue.put(None)
        self._background.forget(self)
        self._end_failed()

    def _end_failed(self) -> None:
        self._roll_call.end()
        self._give_up()

    def has_left(self) -> bool:
        try:
            if not self._agreement.is_reached(LEAVES):
                return False
            self._roll_call.end()
            self._free()
        except Exception as error:  # noqa: BLE001 - there is no caller to raise it to
            self._background.see_trouble(f"process group {self.name!r}: {error}")
            _kept.append(self._agreement)
            self._give_up()
        return True
