"""Addresses by which nodes reach each other: a port that other nodes try, and attempts to reach theirs."""

from __future__ import annotations

import os
import selectors
import socket

from engine.node import networks
from engine.node.agent.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_TIME = 3.0
"""Seconds for a connection to another node. A slower address is not the right one."""

CONNECT_GRACE = 0.3
"""Seconds for other addresses after the first has answered, because filtered addresses never answer."""

MOST_ADDRESSES = 64


class Listener:
    """The port that other nodes try."""

    def __init__(self, selector: selectors.BaseSelector, send: Callable[..., None]) -> None:
        self._selector, self.send = selector, send
        self._socket: socket.socket | None = None

    def open_port(self, message: Message) -> None:
        """`open_door`: opens a port, and sends the token to everyone who connects."""
        self._close()
        listener, token = networks.open_listener(), message["token"].encode()
        self._socket = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda: networks.answer(listener, token))
        own = os.environ.get("SSH_CONNECTION", "").split()
        addresses = [one for _, one in networks.interfaces() if one and not networks.is_loopback(one)]
        addresses.sort(key=lambda address: (own[2:3] != [address], ":" in address))
        self.send(type="door", number=message["number"], port=listener.getsockname()[1], addresses=addresses)

    def close_port(self, message: Message) -> None:
        """`close_door`: closes the port."""
        self._close()

    def _close(self) -> None:
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
