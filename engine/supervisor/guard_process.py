"""A process that starts the supervisor of a run again when it dies.

The supervisor starts this file, which imports next to nothing. The two share a pipe: a byte from the supervisor means that it
ends as it should; the end of the file without one means that it died.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

DEATHS = "RANKDECK_SUPERVISOR_DEATHS"
"""Environment variable that tells a supervisor how many died in a row before it."""

MAX_DEATHS = 5
"""Deaths in a row after which no supervisor is started any more: something ends each of them."""

CALM_SECONDS = 60.0
"""A supervisor that lived longer than this ends the row."""

FIRST_DELAY = 0.1
"""Seconds between a death and the next start; doubled with each death in a row."""


def has_supervisor(lock: str) -> bool:
    """Whether another process owns the run, or there is no run any more."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def main(deaths: int, lock: str, command: str, folder: str) -> None:
    """Waits for the end of the supervisor that started this process, and starts the next one if that is needed.

    Args:
        deaths: supervisors that died in a row before.
        lock: path of the run's lock, which a living supervisor holds.
        command: path of the program `rankdeck`.
        folder: of the run.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # a login session that ends sends them
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the next supervisor would inherit
    began = time.monotonic()
    if os.read(0, 1):
        return
    if time.monotonic() - began > CALM_SECONDS:
        deaths = 0
    import subprocess  # not before it is needed: this process waits for days

    while deaths < MAX_DEATHS:
        time.sleep(FIRST_DELAY * 2**deaths)
        if has_supervisor(lock):
            return
        deaths += 1
        starter = subprocess.run(
            [sys.executable, "-P", command, "supervise", folder],
            env={**os.environ, DEATHS: str(deaths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            restore_signals=True,
            check=False,
        )
        if starter.stdout.strip() == b"ready":
            return  # it has a guard of its own
    sys.stderr.write(
        f"{time.strftime('%Y-%m-%d %H:%M:%S')} {deaths} supervisors died in a row; the next command that asks for this run starts another\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:5])
