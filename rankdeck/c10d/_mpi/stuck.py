"""Threads that hang inside MPI because a peer is gone. Such a call never returns: it polls, and takes a core. So its thread is put to sleep for
ever: a signal handler in it waits, with all signals blocked."""

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Iterable

QUIET_TIME = 0.1
"""Seconds in which a thread stays at one place. It is then inside one call of MPI, which polls: neither in Python, whose lock it could hold, nor
in the memory allocator."""

END_TIME = 2.0  # seconds in which threads may end by themselves, because their peers live


class _Action(ctypes.Structure):
    """`struct sigaction` of glibc and musl, on 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def end_or_sleep(threads: Iterable[threading.Thread]) -> None:
    """Waits until each of these threads has ended or sleeps for ever. A thread that makes progress all the time is left alone."""
    left = list(threads)
    places: dict[threading.Thread, tuple[object, float]] = {}
    end = time.monotonic() + END_TIME
    while (left := [one for one in left if one.is_alive()]) and (now := time.monotonic()) < end:
        frames = sys._current_frames()
        for thread in tuple(left):
            frame = frames.get(thread.ident or 0)
            place = (id(frame), frame.f_lasti if frame is not None else 0)
            before, since = places.setdefault(thread, (place, now))
            if before != place:
                places[thread] = place, now
            elif now - since > QUIET_TIME:
                _put_to_sleep(thread, end)
                left.remove(thread)
        time.sleep(0.01)


def _put_to_sleep(thread: threading.Thread, end: float) -> None:
    libc = ctypes.CDLL(None)
    wait = ctypes.cast(libc.pause, ctypes.c_void_p)
    for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1):
        before = _Action()
        libc.sigaction(number, None, ctypes.byref(before))
        if before.handler in (None, wait.value):  # nobody else uses it
            action = _Action(wait.value, (ctypes.c_ulong * 16)(*[~0] * 16), 0, None)
            libc.sigaction(number, ctypes.byref(action), None)
            signal.pthread_kill(thread.ident or 0, number)
            break
    while _runs(thread) and time.monotonic() < end:
        time.sleep(0.001)


def _runs(thread: threading.Thread) -> bool:
    with open(f"/proc/self/task/{thread.native_id}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "R"
