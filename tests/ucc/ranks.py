"""Ranks of one machine that meet as under torchrun, with a Python that has UCC."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import ROOT, SLOWEST, processes_with, wait_until
from tests.ucc.system import need_ucc

MARK = "RANKDECK_TEST_RANKS"
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "RANKDECK_BACKEND")


class Done(NamedTuple):
    """How ranks have ended."""

    statuses: list[int]
    outputs: list[str]
    errors: list[str]

    @property
    def returncode(self) -> int:
        """Of the first that failed; else 0."""
        return next((status for status in self.statuses if status), 0)

    @property
    def stdout(self) -> str:
        """Of all ranks."""
        return "".join(self.outputs)

    @property
    def stderr(self) -> str:
        """Of all ranks."""
        return "".join(self.errors)


def run_ranks(
    ranks: int, script: Path, *arguments: str, seconds: float = 60.0, env: dict[str, str] | None = None
) -> Done:
    """Runs a script in some ranks to their end, and sees to it that nothing of them is left.

    Args:
        ranks: how many.
        script: what each of them runs.
        *arguments: of the script.
        seconds: the deadline on a quiet machine, after which they are killed and the test fails.
        env: variables on top of this process's.
    """
    python, mark = need_ucc(), uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    environment |= {
        MARK: mark,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONFAULTHANDLER": "1",
        **(env or {}),
    }
    end = time.monotonic() + seconds * SLOWEST
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, f"{rank}.{kind}") for rank in range(ranks) for kind in ("out", "err")]
        files = [path.open("w") for path in outputs]
        processes = [
            subprocess.Popen(
                [str(python), str(script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=files[2 * rank],
                stderr=files[2 * rank + 1],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        try:
            statuses = [process.wait(max(0.1, end - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            statuses = []
        finally:
            for left in processes_with(MARK, mark) if any(one.poll() is None for one in processes) else ():
                os.kill(left.pid, signal.SIGKILL)
            for process in processes:
                process.wait()
            for file in files:
                file.close()
        texts = [path.read_text(errors="replace") for path in outputs]
    if not statuses:
        pytest.fail(f"{script} had not ended after {seconds * SLOWEST:g} s\n" + "\n".join(texts))
    wait_until(lambda: not processes_with(MARK, mark), 5, "every process of the ranks is gone")
    return Done(statuses, texts[::2], texts[1::2])


def free_port() -> int:
    """A port of TCP that nobody uses at this moment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
