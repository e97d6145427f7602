"""A process that starts the supervisor of a run again when it dies.

The supervisor starts this file, which imports next to nothing. The two share a pipe: a byte from the supervisor means that it
ends as it should; the end of the file without one means that it died. The bridge to the agent on the same machine starts it too, a
while after the supervisor has died, in case the guard died with it.
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


def is_newest(whereabouts: str, pid: str) -> bool:
    """Whether no other supervisor has come since that one; False once the run has ended."""
    import json

    try:
        with open(whereabouts, "rb") as file:
            return bool(json.load(file)["pid"] == int(pid))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def main(
    deaths: int, lock: str, command: str, folder: str, whereabouts: str = "", pid: str = "", log: str = ""
) -> None:
    """Waits for the end of the supervisor that started this process, and starts the next one if that is needed.

    Args:
        deaths: supervisors that died in a row before.
        lock: path of the run's lock, which a living supervisor holds.
        command: path of the program `rankdeck`.
        folder: of the run.
        whereabouts: path of the file that names the newest supervisor, where this is not the guard that the supervisor has started.
        pid: of the supervisor that died, in that case.
        log: of the supervisor, likewise.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # a login session that ends sends them
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the next supervisor would inherit
    began = time.monotonic()
    if os.read(0, 1) or (whereabouts and not is_newest(whereabouts, pid)):
        return
    if log:
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), 2)
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
    main(int(sys.argv[1]), *sys.argv[2:])
