"""A followed run while Ctrl-C's question is on the terminal."""

import asyncio
import errno
import os
import sys
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from engine.commands import follow
from engine.commands.interrupts import FollowInterrupts


def test_what_waits_for_an_answer_does_not_grow_with_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[object] = []

    async def snapshots(_: object) -> AsyncGenerator[tuple[Any, tuple[()]], None]:
        for attempt in [*[0] * 50, *[1] * 50]:
            yield SimpleNamespace(run=SimpleNamespace(attempt=attempt, state="running", job=None)), ()
        raise KeyError

    monkeypatch.setattr(follow, "snapshots", snapshots)
    monkeypatch.setattr(follow, "_Printer", lambda *_: SimpleNamespace(turn_to=print))
    interrupts: Any = SimpleNamespace(after_answer=waiting.append)
    teller: Any = SimpleNamespace(look=lambda _: None)
    with pytest.raises(KeyError):
        asyncio.run(follow._follow_run(interrupts, interrupts, teller))
    assert len(waiting) == 2


def test_a_terminal_that_is_gone_detaches(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    async def main() -> None:
        run: Any = None
        interrupts = FollowInterrupts(run, owner=True)
        interrupts._answer = lambda line: None
        interrupts._read_answer()
        assert interrupts.detached.is_set()
        assert not interrupts.is_asking

    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        monkeypatch.setattr(os, "read", read)
        asyncio.run(main())
