"""Answers questions about a node until stdin ends."""

from __future__ import annotations

import contextlib
import time

from engine.node.probe.channel import SYNC, read_question, write, write_answer
from engine.node.probe.machine import Message, machine
from engine.node.probe.network import connect, listen
from engine.node.probe.rank import job
from engine.node.probe.torch_import import run, torch


def clock(question: Message) -> Message:
    """Seconds since the epoch."""
    return {"time": time.time()}


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
    """Entry point of the program."""
    with contextlib.suppress(BrokenPipeError):
        write(SYNC)
        while True:
            question = read_question()
            write_answer(ANSWERS[question["ask"]](question))
