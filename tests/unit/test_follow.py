"""A followed run while Ctrl-C's question is on the terminal."""

import asyncio
import errno
import os
import sys
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.commands import follow
from engine.commands.interrupts import FollowInterrupts
from engine.core.views.view import JobView


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


def test_a_run_that_its_job_ends_before_its_last_step_is_warned_of_once_its_pace_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late, quick = JobView(job="109", ends_at=0.0, last_step=100), JobView(job="109")
    said: list[str] = []

    async def snapshots(_: object) -> AsyncGenerator[tuple[Any, tuple[()]], None]:
        for step, job in [(1, late), (15, late), (16, quick), (30, late), (49, late), (50, late), (90, late)]:
            yield SimpleNamespace(run=SimpleNamespace(attempt=0, state="running", job=job, step=step)), ()
            said.append(capsys.readouterr().err)
        raise KeyError

    monkeypatch.setattr(follow, "snapshots", snapshots)
    monkeypatch.setattr(follow, "_Printer", lambda *_: SimpleNamespace(turn_to=id))
    run, interrupts, teller = (
        cast("Any", SimpleNamespace(**one))
        for one in ({"run": "job-1"}, {"after_answer": lambda say: say()}, {"look": id})
    )
    with pytest.raises(KeyError):
        asyncio.run(follow._follow_run(run, interrupts, teller))
    assert [bool(one) for one in said] == [False] * 5 + [True, False]
    assert "job-1 will not be done in time: job 109 · ends in " in said[5]
    assert "before step 100" in said[5]


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
