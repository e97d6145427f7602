"""Jobs of real ranks under a real mpirun."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support import ROOT, processes_with, wait_until

SECONDS = 180.0
"""Within which a job has ended."""

MARK = "RANKDECK_TEST_JOB"
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PMI_SIZE")


@functools.cache
def open_mpi() -> str:
    """The mpirun of Open MPI; empty where there is none."""
    for name in ("mpirun.openmpi", "mpirun"):
        path = shutil.which(name)
        if path:
            version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            if "Open MPI" in version or "OpenRTE" in version:
                return path
    return ""


def need_mpi() -> None:
    """Skips the test where ranks can't be started."""
    pytest.importorskip("mpi4py", reason="needs mpi4py: pip install mpi4py", exc_type=ImportError)
    if not open_mpi():
        pytest.skip("needs the mpirun of Open MPI: apt-get install openmpi-bin")


def run_job(
    ranks: int, script: Path, *arguments: str, seconds: float = SECONDS, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a script under mpirun to its end, and sees to it that nothing of the job is left.

    Args:
        ranks: how many.
        script: what each of them runs.
        *arguments: of the script.
        seconds: the deadline, after which the job is killed and the test fails.
        env: variables on top of this process's.

    Returns:
        How mpirun ended, with the output of all ranks.
    """
    mark = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    environment.update(
        {
            MARK: mark,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            **(env or {}),
        }
    )
    argv = [open_mpi(), "-np", str(ranks), "--oversubscribe", sys.executable, str(script), *arguments]
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for left in processes_with(MARK, mark):
                os.kill(left.pid, signal.SIGKILL)
            output, errors = process.communicate()
            pytest.fail(f"{argv} had not ended after {seconds:g} s\n{output}\n{errors}")
    wait_until(lambda: not processes_with(MARK, mark), 5, "every process of the job is gone")
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)
