"""Whether other nodes reach this one, and this one others."""

from __future__ import annotations

from engine.node.networks import interfaces, is_loopback, try_addresses
from engine.node.probe.channel import LISTENER
from engine.node.probe.machine import Message


def listen(question: Message) -> Message:
    """Lets other nodes try which addresses of this one connect."""
    port = LISTENER.open(question["token"])
    return {"port": port, "addresses": [address for _, address in interfaces() if address and not is_loopback(address)]}


def connect(question: Message) -> Message:
    """Tries all addresses of a node at once, and names the own interface of each that answers."""
    names = {address: name for name, address in interfaces()}
    reached, missed = try_addresses(
        question["addresses"], question["port"], question["token"].encode(), question["seconds"]
    )
    return {
        "reached": [(address, names.get(own, own)) for address, own in reached.items()],
        "missed": list(missed.items()),
    }
