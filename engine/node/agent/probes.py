"""Answers to questions about the node: probes in a process of their own, folders for synchronised code, and addresses by which nodes
reach each other, with a port that the others try.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable

from engine.linux.processes import MARK, start_process
from engine.node import networks
from engine.node.agent.state import NodeState
from engine.node.agent.wire import MAX_FRAME, Any, FrameBuffer, Message, encode_frame

PROBE_SYNC = b"\0RANKDECK-PROBE 1\n"  # a probe prints this before its answers


class Probes:
    """Runs probes (`engine.node.probe`)."""

    def __init__(self, state: NodeState, send: Callable[..., None]) -> None:
        self._state, self.send = state, send
        self._probes: dict[int, tuple[int, Any]] = {}
        """By pid: number of the request, and the file of the answers."""

    def start_probe(self, message: Message) -> None:
        """`probe`: starts a probe with its questions on standard input."""
        import tempfile  # not needed at boot

        questions, answers = (tempfile.TemporaryFile(dir=".") for _ in range(2))  # noqa: SIM115  one outlives this
        with questions:
            questions.writelines(encode_frame(question) for question in message["questions"])
            questions.seek(0)
            environment = {**os.environ, MARK: self._state.mark}
            pid = start_process(message["argv"], env=environment, stdin=questions, stdout=answers)
        self._probes[pid] = message["number"], answers

    def ended(self, pid: int) -> None:
        """Sends a probe's answers, if it was one that has ended."""
        if pid not in self._probes:
            return
        number, answers = self._probes.pop(pid)
        with answers:
            answers.seek(0)
            _, _, frames = answers.read(MAX_FRAME).partition(PROBE_SYNC)
            self.send(type="probed", number=number, answers=FrameBuffer().feed(frames))

    def make_folder(self, message: Message) -> None:
        """`make_folder`: creates the folder for code."""
        reason = ""
        try:
            os.makedirs(message["path"], exist_ok=True)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
        self.send(type="folder", number=message["number"], reason=reason)


CONNECT_TIME = 3.0  # Seconds for a connection to another node. A slower address is not the right one.
CONNECT_GRACE = 0.3  # seconds for other addresses after the first has answered, because filtered addresses never answer
MOST_ADDRESSES = 64


class Listener:
    """The port that other nodes try."""

    def __init__(self, selector: selectors.BaseSelector, send: Callable[..., None]) -> None:
        self._selector, self.send = selector, send
        self._socket: socket.socket | None = None

    def open_port(self, message: Message) -> None:
        """`open_door`: opens a port, and sends the token to everyone who connects."""
        self.close_port(message)
        listener, token = networks.open_listener(), message["token"].encode()
        self._socket = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda: networks.answer(listener, token))
        own = os.environ.get("SSH_CONNECTION", "").split()
        addresses = [one for _, one in networks.interfaces() if one and not networks.is_loopback(one)]
        addresses.sort(key=lambda address: (own[2:3] != [address], ":" in address))
        self.send(type="door", number=message["number"], port=listener.getsockname()[1], addresses=addresses)

    def close_port(self, message: Message) -> None:
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def try_node(self, message: Message) -> None:
        """`knock`: tries all addresses of another node. It must answer with the token, because an address may belong to another
        machine. Blocks for at most CONNECT_TIME."""
        addresses, token = message["addresses"][:MOST_ADDRESSES], message["token"].encode()
        reached, _ = networks.try_addresses(addresses, message["port"], token, CONNECT_TIME, CONNECT_GRACE)
        names = interface_names()
        found = [[address, names.get(own, "")] for address, own in reached.items()]
        self.send(type="knocked", number=message["number"], reached=found)

    def name_interface(self, message: Message) -> None:
        """`name_interface`: reports the interface of an own address; empty if there is none."""
        name = interface_names().get(message["address"], "")
        self.send(type="interface", number=message["number"], name=name)


def interface_names() -> dict[str, str]:
    """Returns the names of this node's interfaces by address."""
    return {address: name for name, address in networks.interfaces() if address}
