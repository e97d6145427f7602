"""The processes that start the next supervisor."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from engine.supervisor import guard_process
from engine.supervisor.guard import end_guards


def test_a_run_that_is_given_up_ends_its_guards_and_no_others(tmp_path: Path) -> None:
    arguments = ["0", "0.0", str(tmp_path / "command.py"), str(tmp_path)]
    words = [sys.executable, "-I", "-S", guard_process.__file__, *arguments[:2]]
    locks = [str(tmp_path / name) for name in ("lock", "other")]
    guards = [subprocess.Popen([*words, lock, *arguments[2:]], stdin=subprocess.PIPE) for lock in locks]
    end_guards(locks[0], only_stopped=True)
    assert [guard.poll() for guard in guards] == [None, None]
    end_guards(locks[0], only_stopped=False)
    assert guards[0].wait() == -signal.SIGKILL
    guards[1].communicate(b".")
    assert guards[1].returncode == 0
