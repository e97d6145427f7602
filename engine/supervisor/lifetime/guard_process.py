"""A process that starts the supervisor of a run again when it dies.

It imports next to nothing. It shares a pipe with the supervisor, whose end means that the supervisor died: one
that ends as it should kills this process before. A supervisor that a signal has stopped is ended first.
"""

import os
import select
import signal
import sys
import time

from engine.linux.locks import is_locked
from engine.linux.processes import is_stopped, outlive_signals
from engine.node.titles import show_title

PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from engine.supervisor.lifetime.guard_process import main;"
    "main(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])"
)
"""Python code of a guard. Its arguments: the folder of the engine, then those of `main`."""

DEATHS = "RANKDECK_SUPERVISOR_DEATHS"  # environment variable that tells a supervisor how many died in a row before it
READY, GIVEN_UP = (
    "ready",
    "given up",
)  # what a supervisor prints: it serves, or it is the last, because a defect has ended so many
MANY_DEATHS = 5  # deaths in a row after which the log says so: something ends each of them
CALM_SECONDS = 60.0  # a supervisor that lived longer than this ends the row
MOST_FAILURES = 5  # deaths in a row by a defect after which there is no next supervisor; a signal ends no row
AT_ONCE = 2  # deaths in a row followed at once by the next supervisor: until then we may be killed too

FIRST_DELAY, LONGEST_DELAY = 0.4, 60.0
"""Seconds between a later death and the next start: the first is doubled with each death in a row, up to the second."""

LOCK_PAUSE = 0.05
"""Seconds between two looks at a lock that is taken: by the dead supervisor, whose files are not all closed at once, by a command that looks,
or by the next supervisor, which is not known yet."""

LOOK_PAUSE, STOPPED_LIMIT = 2.0, 5
"""Seconds between two looks at the supervisor, and looks in which it may be found stopped. They are counted instead of time: where a
batch system suspends a whole job, this process is stopped too."""


def is_newest(whereabouts: str, supervisor: int) -> bool:
    """Whether no other supervisor has come since this one. False too once the run has ended."""
    import json

    try:
        with open(whereabouts, "rb") as file:
            return bool(json.load(file)["pid"] == supervisor)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def wait_death(supervisor: int) -> None:
    """Waits for the end of the supervisor, which is the parent of this process, and ends it if a signal has stopped it."""
    looks = 0
    while not select.select([0], [], [], LOOK_PAUSE)[0]:
        looks = looks + 1 if os.getppid() == supervisor and is_stopped(supervisor) else 0
        if looks >= STOPPED_LIMIT:
            os.kill(supervisor, signal.SIGKILL)


def pause(deaths: int) -> None:
    """Waits before the next start. `deaths`: supervisors that died in a row."""
    if deaths >= AT_ONCE:
        time.sleep(min(FIRST_DELAY * 2 ** min(deaths - AT_ONCE, 10), LONGEST_DELAY))


def main(deaths: int, supervisor: int, lock: str, command: str, folder: str, whereabouts: str) -> None:
    """Waits for the end of the supervisor that started this process, and starts the next one if that is needed.

    Args:
        deaths: supervisors that died in a row before.
        supervisor: its pid. It may be dead before this process can ask who its parent is.
        lock: path of the run's lock, which a living supervisor holds.
        command: path of the program `rankdeck`.
        whereabouts: path of the file that names the newest supervisor.
    """
    show_title("guard", os.path.basename(folder))
    outlive_signals()
    began = time.monotonic()
    wait_death(supervisor)
    if time.monotonic() - began > CALM_SECONDS:
        deaths = 0
    import subprocess  # not before it is needed: this process waits for days

    if not is_newest(whereabouts, supervisor):
        return
    pause(deaths)
    # The next one has a guard of its own, even if it has died already: each death would double the guards, and each would count deaths from 0.
    while is_newest(whereabouts, supervisor):
        try:
            if is_locked(lock):
                time.sleep(LOCK_PAUSE)
                continue
        except OSError:
            return
        if deaths == MANY_DEATHS:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            sys.stderr.write(f"{now} {deaths} supervisors died in a row; the next ones wait, up to a minute\n")
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
        if starter.stdout.strip() in (READY.encode(), GIVEN_UP.encode()):
            return  # it has a guard of its own, or needs none
        pause(deaths)
