"""Starts a supervisor before its run is planned. It imports its modules meanwhile.

`rankdeck_command` calls this before the command's own imports: both take about as long.
"""

import os
import subprocess
import sys

from engine.installed import COMMAND
from engine.linux.processes import MARK

waiting: subprocess.Popen[bytes] | None = None  # it reads its run's folder as a line of JSON, or ends with us


def start_early() -> None:
    """Starts the supervisor. If that fails, the launch starts one later."""
    global waiting
    try:
        for stream in range(3):
            os.fstat(stream)  # else a pipe would take the place of a stream that is closed
        # A supervisor that a rank's script starts must not be killed as a stray child of that rank's run.
        waiting = subprocess.Popen(
            [sys.executable, "-P", str(COMMAND), "supervise"],
            env={name: value for name, value in os.environ.items() if name != MARK},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return


def end_early() -> None:
    """Ends the supervisor that was started early: a run in a job needs none here."""
    global waiting
    starter, waiting = waiting, None
    if starter is not None:
        starter.communicate()
