"""The booted process. The first frame names the run. Then this process is the bridge to that run's agent, and starts one if there is none.

It copies bytes both ways, and does not read them.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import time

from engine.linux.folders import private_folder
from engine.linux.sockets import peer_of
from engine.node.agent import folders
from engine.node.agent.wire import EXIT_FAILED, EXIT_LINK_LOST, MAX_FRAME, SYNC, Message, encode_frame, read_exactly
from engine.node.titles import show_title

CONNECT_TIME = 10.0  # seconds for an agent to answer, or for agent and warden to end
CHUNK = 1 << 16


def connect(folder: str, mark: str, title: str, *, in_job: bool) -> socket.socket:
    """Returns a connection to this run's agent. Starts one if there is none.

    Args:
        folder: Folder of this run on this node.
        title: run and node, for `ps`.
        in_job: a new agent stays in the session of this login.

    Raises:
        OSError: the folder or the socket can't be made.
        RuntimeError: an agent is there but does not answer, or the folder or the socket belongs to another user.
    """
    private_folder(folder)
    deadline = time.monotonic() + CONNECT_TIME
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), open(os.path.join(folder, "socket")) as file:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.setblocking(False)  # otherwise this process would wait if no agent accepts and the queue is full
            link.connect(file.read())
            link.setblocking(True)
            if peer_of(link)[1] != os.geteuid():
                raise RuntimeError(f"{link.getpeername()} belongs to another user")
            return link
        lock = folders.take_lock(folder)
        if lock is None:
            time.sleep(0.02)
            continue
        listener = folders.listen(folder, mark)
        if os.fork() == 0:
            status = EXIT_FAILED
            try:
                from engine.node.agent import warden  # a bridge to an agent that runs needs neither
                from engine.node.login import leave_session

                warden.detach(folder, {listener.fileno(), lock})
                if not in_job:
                    leave_session()  # before it starts any process
                warden.run(listener, mark, title)
                status = 0
            finally:
                os._exit(status)
        listener.close()
        os.close(lock)
    end_stopped(folder)
    raise RuntimeError("the agent on this node does not answer")


def bridge(link: socket.socket, wire_in: int, wire_out: int, folder: str) -> bool:
    """Copies both ways until either end closes. If the agent ended, waits until it and its warden are gone. Returns whether they are gone.

    Until the agent answers, the bridge looks every CONNECT_TIME whether a signal has stopped the agent.
    """
    selector = selectors.DefaultSelector()
    selector.register(wire_in, selectors.EVENT_READ)
    selector.register(link, selectors.EVENT_READ)
    deadline: float | None = time.monotonic() + CONNECT_TIME
    has_answered = False
    while True:
        ready = selector.select(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if deadline is not None and time.monotonic() > deadline:
            deadline = time.monotonic() + CONNECT_TIME
            if end_stopped(folder):
                return False
        for key, _ in ready:
            if key.fileobj is link:
                deadline = None
                try:
                    data = link.recv(CHUNK)
                except ConnectionResetError:  # the agent has ended, perhaps on purpose, before it had read everything
                    data = b""
                if not data:
                    return wait_until_gone(folder) and (has_answered or not tell_last_words(folder, wire_out))
                has_answered = True
                while data:
                    data = data[os.write(wire_out, data) :]
            else:
                data = os.read(wire_in, CHUNK)
                if not data:
                    return False
                try:
                    link.sendall(data)
                except OSError:  # the agent has ended meanwhile, perhaps on purpose
                    return wait_until_gone(folder) and (has_answered or not tell_last_words(folder, wire_out))


def tell_last_words(folder: str, wire_out: int) -> bool:
    """Refuses the run with the last output of agents that have ended again and again. Returns whether they have."""
    from engine.node.agent.files import last_output  # few bridges need it

    given_up, log = os.path.join(folder, folders.GIVEN_UP), os.path.abspath(os.path.join(folder, folders.AGENT_LOG))
    try:
        status = int(os.readlink(given_up))
        os.unlink(given_up)
    except OSError:
        return False
    os.write(wire_out, encode_frame({"type": "refused", "reason": last_output(log), "status": status, "log": log}))
    return True


def end_stopped(folder: str) -> bool:
    """Ends an agent and a warden that a signal has stopped: they keep socket and lock, but never answer. Returns whether there was one."""
    from engine.linux.processes import kill_quietly, process_status  # few bridges need it

    try:
        with open(os.path.join(folder, "owners")) as file:
            owners = json.load(file)
    except (OSError, ValueError):
        return False
    found = [pid for pid, start in owners if (process_status(pid) or ())[:2] == (start, "T")]
    for pid in found:
        kill_quietly(pid, signal.SIGKILL)
    return bool(found)


def wait_until_gone(folder: str) -> bool:
    """Returns whether agent and warden have released their lock.

    Returns False at once where the agent was killed: one that ends on purpose removes its socket first.
    """
    with open(os.path.join(folder, "socket")) as file:
        path = file.read()
    deadline = time.monotonic() + CONNECT_TIME
    while time.monotonic() < deadline and not os.path.exists(path):
        lock = folders.take_lock(folder)
        if lock is not None:
            os.close(lock)
            return True
        time.sleep(0.005)
    return False


def boot() -> int:
    """Connects stdin and stdout to the agent of a run. Starts one if there is none. Returns the exit status: 0, EXIT_FAILED or
    EXIT_LINK_LOST."""
    from engine.linux.processes import become_subreaper, outlive_signals  # few bridges need more of it

    outlive_signals()
    wire_in, wire_out = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.write(wire_out, SYNC)
    size = struct.unpack(">I", read_exactly(wire_in, 4))[0]
    hello = json.loads(read_exactly(wire_in, min(size, MAX_FRAME)))
    show_title("bridge", hello["title"])
    if hello.get("in_step"):
        become_subreaper()
        if child := os.fork():
            return hold_step(child, wire_out)
    return serve(hello, wire_in, wire_out)


def hold_step(child: int, wire_out: int) -> int:
    """Keeps a step of a Slurm job open for the agent that its bridge has started, because Slurm ends what outlives a step's first process.
    Returns the exit status of the bridge after its end. Unless it is 0, waits until everything that the bridge has started has ended."""
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
        folder = hello["folder"] or os.path.join(folders.temporary_folder(), hello["mark"])
        link = connect(folder, hello["mark"], hello["title"], in_job=hello.get("in_job", False))
    except (OSError, RuntimeError) as error:
        os.write(wire_out, encode_frame({"type": "refused", "reason": str(error)}))
        return EXIT_FAILED
    has_closed = False
    with contextlib.suppress(OSError):
        os.chdir(folder)  # a launch moves the folder of a standby
        signal.signal(folders.TITLE_SIGNAL, lambda *_: folders.show_role("bridge"))
        link.sendall(encode_frame(hello))
        has_closed = bridge(link, wire_in, wire_out, ".")
    if has_closed and hello.get("relay") and not os.path.exists(os.path.join(folder, folders.KEEP_FILE)):
        import shutil  # only the last bridge of a run needs it

        shutil.rmtree(folder, ignore_errors=True)
    return 0 if has_closed else EXIT_LINK_LOST
