"""Answers questions about a node until stdin ends."""

import contextlib
import time

from engine.node.networks import interfaces, is_loopback, try_addresses
from engine.node.probe.channel import LISTENER, SYNC, read_question, write, write_answer
from engine.node.probe.machine import Message, machine
from engine.node.probe.rank import job
from engine.node.probe.torch_import import run, torch


def clock(question: Message) -> Message:
    """Returns seconds since the epoch."""
    return {"time": time.time()}


def listen(question: Message) -> Message:
    """Opens a port. Returns it with this node's addresses, for other nodes to try."""
    port = LISTENER.open(question["token"])
    return {"port": port, "addresses": [address for _, address in interfaces() if address and not is_loopback(address)]}


def connect(question: Message) -> Message:
    """Tries all addresses of a node. Returns the own interface of each that answers, and why others failed."""
    names = {address: name for name, address in interfaces()}
    reached, missed = try_addresses(
        question["addresses"], question["port"], question["token"].encode(), question["seconds"]
    )
    return {
        "reached": [(address, names.get(own, own)) for address, own in reached.items()],
        "missed": list(missed.items()),
    }


ANSWERS = {
    "clock": clock,
    "machine": machine,
    "job": job,
    "torch": torch,
    "run": run,
    "listen": listen,
    "connect": connect,
}


def main() -> None:
    with contextlib.suppress(BrokenPipeError):
        write(SYNC)
        while True:
            question = read_question()
            write_answer(ANSWERS[question["ask"]](question))
