"""The bridge: finds the agent of a run or starts it, and copies bytes both ways. It knows nothing of what they mean."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time

from engine.linux.folders import private_folder
from engine.linux.sockets import peer_of
from engine.node.agent.folders import listen, take_lock
from engine.node.agent.wire import EXIT_FAILED

CONNECT_TIME = 10.0
"""Seconds for an agent to answer, or for agent and warden to end."""

CHUNK = 1 << 16


def connect(folder: str, mark: str, title: str, *, in_job: bool) -> socket.socket:
    """A connection to this run's agent, which is started where there is none.

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
            link.setblocking(False)  # or this process would wait where nobody accepts, and the queue is full
            link.connect(file.read())
            link.setblocking(True)
            if peer_of(link)[1] != os.geteuid():
                raise RuntimeError(f"{link.getpeername()} belongs to another user")
            return link
        lock = take_lock(folder)
        if lock is None:
            time.sleep(0.02)
            continue
        listener = listen(folder, mark)
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
    """Copies both ways until either end closes. If the agent ended, waits until it and its warden are gone.

    Returns:
        Whether they are gone.
    """
    selector = selectors.DefaultSelector()
    selector.register(wire_in, selectors.EVENT_READ)
    selector.register(link, selectors.EVENT_READ)
    deadline: float | None = time.monotonic() + CONNECT_TIME
    while True:
        ready = selector.select(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if deadline is not None and time.monotonic() > deadline:
            deadline = None
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
                    return wait_until_gone(folder)
                while data:
                    data = data[os.write(wire_out, data) :]
            else:
                data = os.read(wire_in, CHUNK)
                if not data:
                    return False
                try:
                    link.sendall(data)
                except OSError:  # the agent has ended meanwhile, perhaps on purpose
                    return wait_until_gone(folder)


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
        lock = take_lock(folder)
        if lock is not None:
            os.close(lock)
            return True
        time.sleep(0.005)
    return False
