"""Ranks of one machine that meet as under torchrun, with a Python that has UCC."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.support import ROOT, SLOWEST
from tests.ucc.system import need_ucc
from tests.warm_ranks import Done, template

FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "RANKDECK_BACKEND")


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
    warm = template(need_ucc())
    held = hold_port()
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    environment |= {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(held.getsockname()[1]),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        **(env or {}),
    }
    end = time.monotonic() + seconds * SLOWEST
    with held, tempfile.TemporaryDirectory() as folder:
        files = [[Path(folder, f"{rank}.{kind}") for kind in ("out", "err")] for rank in range(ranks)]
        own = [{**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        argv = [str(script), *arguments]
        started = [warm.start(argv, own[rank], os.getcwd(), *files[rank]) for rank in range(ranks)]
        try:
            statuses = [rank.wait(max(0.1, end - time.monotonic())) for rank in started]
        except subprocess.TimeoutExpired:
            statuses = []
        finally:
            if any(rank.poll() is None for rank in started):
                warm.kill_all()
        texts = [[path.read_text(errors="replace") for path in pair] for pair in files]
    outputs, errors = ([pair[index] for pair in texts] for index in (0, 1))
    if not statuses:
        pytest.fail(f"{script} had not ended after {seconds * SLOWEST:g} s\n" + "\n".join([*outputs, *errors]))
    warm.check_nothing_is_left()
    return Done(statuses, outputs, errors)


def hold_port() -> socket.socket:
    """A socket whose port the kernel gives to nobody else. A store may listen there, because it reuses addresses as this does."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
