"""What the booted process does: the first frame says which run this is, then the process is the bridge to that run's agent."""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import time

from engine.node.agent.bridge import bridge, connect
from engine.node.agent.folders import KEEP_FILE, temporary_folder
from engine.node.agent.wire import EXIT_FAILED, EXIT_LINK_LOST, MAX_FRAME, SYNC, encode_frame, read_exactly

EXIT_TIME = 0.5
"""Seconds in which a process that dies is gone after its pipes are closed."""

ORPHAN_TIME = 3.0
"""Seconds in which the guard of a supervisor that died has started the next one."""


def boot() -> int:
    """Connects stdin and stdout to the agent of a run, which is started where there is none.

    Returns:
        The exit status: 0, EXIT_FAILED or EXIT_LINK_LOST.
    """
    supervisor = os.getppid()
    wire_in, wire_out = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.write(wire_out, SYNC)
    size = struct.unpack(">I", read_exactly(wire_in, 4))[0]
    hello = json.loads(read_exactly(wire_in, min(size, MAX_FRAME)))
    try:
        # A later login may have another TMPDIR, so from the second connection on the supervisor names the folder.
        folder = hello["folder"] or os.path.join(temporary_folder(), hello["mark"])
        link = connect(folder, hello["mark"])
    except (OSError, RuntimeError) as error:
        os.write(wire_out, encode_frame({"type": "refused", "reason": str(error)}))
        return EXIT_FAILED
    link.sendall(encode_frame(hello))
    has_closed = False
    with contextlib.suppress(OSError):
        has_closed = bridge(link, wire_in, wire_out, folder)
    if has_closed and hello.get("relay") and not os.path.exists(os.path.join(folder, KEEP_FILE)):
        import shutil  # only the last bridge of a run needs it

        shutil.rmtree(folder, ignore_errors=True)
    if not has_closed and hello.get("guard") and has_died(supervisor, wire_in):
        time.sleep(ORPHAN_TIME)
        for number in (0, 1):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        os.execv(hello["guard"][0], hello["guard"])
    return 0 if has_closed else EXIT_LINK_LOST


def has_died(supervisor: int, wire_in: int) -> bool:
    """Whether the supervisor, which is the parent of this process, has died.

    Args:
        supervisor: its pid.
        wire_in: comes from it. Where it has not reached its end, the agent went away.
    """
    if not select.select([wire_in], [], [], 0)[0] or os.read(wire_in, 1):
        return False
    end = time.monotonic() + EXIT_TIME
    while os.getppid() == supervisor and time.monotonic() < end:  # its pipes are closed a moment before it is gone
        time.sleep(0.01)
    return os.getppid() != supervisor
