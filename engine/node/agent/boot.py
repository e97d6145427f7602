"""The work of the booted process: the first frame names the run, then the process is the bridge to that run's agent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct

from engine.node.agent.bridge import bridge, connect
from engine.node.agent.folders import KEEP_FILE, TITLE_SIGNAL, show_role, temporary_folder
from engine.node.agent.wire import EXIT_FAILED, EXIT_LINK_LOST, MAX_FRAME, SYNC, Message, encode_frame, read_exactly
from engine.node.titles import show_title


def boot() -> int:
    """Connects stdin and stdout to the agent of a run, which is started where there is none.

    Returns:
        The exit status: 0, EXIT_FAILED or EXIT_LINK_LOST.
    """
    wire_in, wire_out = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.write(wire_out, SYNC)
    size = struct.unpack(">I", read_exactly(wire_in, 4))[0]
    hello = json.loads(read_exactly(wire_in, min(size, MAX_FRAME)))
    show_title("bridge", hello["title"])
    if hello.get("in_step"):
        from engine.linux.processes import become_subreaper  # takes time that a bridge over ssh does not need

        become_subreaper()
        if child := os.fork():
            return hold_step(child, wire_out)
    return serve(hello, wire_in, wire_out)


def hold_step(child: int, wire_out: int) -> int:
    """Keeps a step of a Slurm job open for the agent that its bridge has started, because Slurm ends what outlives a step's first process.

    Returns:
        The exit status of the bridge, after it and, unless it is 0, everything that it has started has ended.
    """
    status = EXIT_LINK_LOST
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, ended = os.wait()
            if pid == child:
                if ended == 0:
                    return 0
                status = os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else EXIT_LINK_LOST
                with contextlib.suppress(OSError):
                    os.write(wire_out, encode_frame({"type": "bridge_ended"}))  # srun stays, and so does its pipe
    return status


def serve(hello: Message, wire_in: int, wire_out: int) -> int:
    """Is the bridge of a run. Returns the exit status."""
    try:
        # A later login may have another TMPDIR, so from the second connection on the supervisor names the folder.
        folder = hello["folder"] or os.path.join(temporary_folder(), hello["mark"])
        link = connect(folder, hello["mark"], hello["title"], in_job=hello.get("in_job", False))
    except (OSError, RuntimeError) as error:
        os.write(wire_out, encode_frame({"type": "refused", "reason": str(error)}))
        return EXIT_FAILED
    has_closed = False
    with contextlib.suppress(OSError):
        os.chdir(folder)  # a launch moves the folder of a standby
        signal.signal(TITLE_SIGNAL, lambda *_: show_role("bridge"))
        link.sendall(encode_frame(hello))
        has_closed = bridge(link, wire_in, wire_out, ".")
    if has_closed and hello.get("relay") and not os.path.exists(os.path.join(folder, KEEP_FILE)):
        import shutil  # only the last bridge of a run needs it

        shutil.rmtree(folder, ignore_errors=True)
    return 0 if has_closed else EXIT_LINK_LOST
