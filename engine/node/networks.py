"""Addresses of a node, and which addresses of another node accept connections. Shared by agent and probe."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import socket
import struct
import time

BACKLOG = 1024  # connections that may wait at a port: all nodes of a run try each address at the same time
SIOCGIFADDR = 0x8915


def is_loopback(address: str) -> bool:
    """Whether an address is only valid on this machine, or on one link."""
    return address.startswith("127.") or address == "::1" or address.lower().startswith("fe80")


def interfaces() -> list[tuple[str, str]]:
    """Returns (interface, address) in the kernel's order, IPv4 first. Interfaces without an address have an empty one."""
    names = [name for _, name in socket.if_nameindex()]
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for name in names:
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append((name, socket.inet_ntoa(answer[20:24])))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:
        for line in file:
            digits, *_, name = line.split()
            found.append((name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))))
    known = {name for name, _ in found}
    return found + [(name, "") for name in names if name not in known]


def open_listener() -> socket.socket:
    """Opens a socket that listens on every address of this node, at a port that the kernel chooses."""
    try:
        listener = socket.socket(socket.AF_INET6)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
    except OSError:  # a kernel without IPv6
        listener = socket.socket(socket.AF_INET)
        listener.bind(("", 0))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def answer(listener: socket.socket, token: bytes) -> None:
    """Accepts a connection and sends it the token."""
    with contextlib.suppress(OSError):
        visitor, _ = listener.accept()
        with visitor:
            visitor.setblocking(False)
            visitor.send(token)


def try_addresses(
    addresses: list[str], port: int, token: bytes, seconds: float, grace: float | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Connects to all addresses of a node at the same time.

    Args:
        port: where it listens.
        token: its expected answer, because on another network an address may belong to another machine.
        seconds: time for all of them. grace: seconds for other addresses after the first has answered; None: no such limit.

    Returns:
        By address, in the order given: the own address of a connection; and for failed addresses, the reason.
    """
    reached: dict[str, str] = {}
    missed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(selectors.DefaultSelector())
        for address in addresses:
            try:
                wire = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
                wire.setblocking(False)
                started = wire.connect_ex((address, port))
            except OSError as error:
                started = error.errno or errno.EIO
            if started in (0, errno.EINPROGRESS):
                missed[address] = "no answer"
                waiting.register(wire, selectors.EVENT_READ, address)
            else:
                missed[address] = os.strerror(started)
        deadline = time.monotonic() + seconds
        while waiting.get_map() and time.monotonic() < deadline:
            for key, _ in waiting.select(max(0.0, deadline - time.monotonic())):
                wire = key.fileobj  # type: ignore[assignment]
                waiting.unregister(wire)
                try:
                    own, heard = wire.getsockname()[0], wire.recv(len(token))
                except OSError as error:
                    missed[key.data] = error.strerror or str(error)
                    continue
                if heard == token:
                    reached[key.data] = own
                    del missed[key.data]
                    if grace is not None:
                        deadline = min(deadline, time.monotonic() + grace)
                else:
                    missed[key.data] = "another machine answers there"
    return {address: reached[address] for address in addresses if address in reached}, missed
