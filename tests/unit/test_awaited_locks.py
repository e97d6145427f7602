"""Which lock file a rank waits for, how old it is, and who holds it."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from torch.utils.file_baton import FileBaton

from engine.core.failures.stacks import RankStack, doings, fold, story
from rankdeck._collectives import awaited_lock
from tests.support import entries, wait_until

HOLD = entries("unit/awaited_locks", "hold")
"""Holds a lock as filelock does, or as torch's FileBaton does."""


@pytest.mark.parametrize(("kind", "is_held"), [("baton", True), ("baton", False), ("filelock", True)])
def test_the_lock_that_the_main_thread_waits_for(kind: str, is_held: bool, tmp_path: Path) -> None:
    path, found = tmp_path / "lock", list[Any]()
    words = [sys.executable, "-c", HOLD, kind, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        end = holder.stdin.close
        holder.stdout.readline()
        if not is_held:
            holder.kill()
            holder.wait()
        os.utime(path, (time.time() - 7200,) * 2)

        def look() -> None:
            try:
                found.append(wait_until(awaited_lock, what="the main thread waits"))
            finally:
                end()
                path.unlink(missing_ok=True)

        looks = threading.Thread(target=look)
        looks.start()
        if kind == "baton":
            FileBaton(str(path)).wait()
        else:
            FileLock(path, timeout=60).acquire(poll_interval=0.1)
        looks.join()
    ((name, age, pid),) = found
    assert (name, pid) == (str(path), holder.pid if is_held else 0)
    assert 7190 < age < 7800
    assert awaited_lock() is None


def test_what_a_late_rank_does_names_its_lock() -> None:
    text = 'Thread 0x0000000000000001 (most recent call first):\n  File "t.py", line 3 in <module>\n'
    record = {"now": 1, "evicted": False, "groups": {}, "entries": [], "lock": ["/c/lock", 7300.0, 41]}
    stack = RankStack(rank=1, text=text, collectives=json.dumps(record))
    assert doings([stack], fold({1: text})) == [
        "rank 1: in <module> (t.py:3); /c/lock is 2 h old, and process 41 holds it"
    ]
    assert story([stack])[0] == "rank 1 waits: /c/lock is 2 h old, and process 41 holds it"
