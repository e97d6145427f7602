"""Jobs of real ranks under a real mpirun."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import PATIENCE, ROOT, kill_hard, processes_with, wait_until
from tests.warm_ranks import Done, Forked, Template, template

PROXY = ROOT / "engine/node/programs/mpi_proxy.py"

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


def need_mpi(library: str = "openmpi") -> str:
    """Returns the mpirun of a library, `openmpi` or `mpich`. Skips the test where ranks can't be started."""
    pytest.importorskip("mpi4py", reason="needs mpi4py: pip install mpi4py", exc_type=ImportError)
    path = open_mpi() if library == "openmpi" else shutil.which(f"mpirun.{library}")
    if not path:
        pytest.skip(f"needs the mpirun of {library}: apt-get install {library}-bin or {library}")
    return path


class Proxied(NamedTuple):
    """A rank of which mpirun knows a proxy."""

    wire: socket.socket
    proxy: int
    rank: Forked


class Proxies:
    """What mpirun starts in place of the ranks, which a template forks. This is to them what the agent is in a run. `warm`: the template. `argv`:
    what each rank runs. `folder`: for the socket and the output of the ranks."""

    def __init__(self, warm: Template, argv: list[str], folder: Path) -> None:
        self._warm, self._argv, self._folder = warm, argv, folder
        self._ranks: list[Proxied] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / "listen"))
        self._server.listen()
        (folder / "socket").write_text(str(folder / "listen"))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(warm, selectors.EVENT_READ)

    def serve(self, seconds: float) -> None:
        """Waits so long, and does what is to be done."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._server:
                self._take(self._server.accept()[0])
            elif key.fileobj is self._warm:
                self._warm.listen(0)
            else:  # mpirun has ended the proxy
                key.data.kill()
                self._selector.unregister(key.fileobj)
        for one in self._ranks:
            if one.rank.poll() is not None:
                self._let_go(one)

    def close(self) -> None:
        """Ends the ranks that there still are."""
        for one in self._ranks:
            one.rank.kill()
            one.wire.close()
        self._selector.close()
        self._server.close()

    def _take(self, wire: socket.socket) -> None:
        """A proxy says what mpirun has given it."""
        (size,) = struct.unpack(">I", wire.recv(4, socket.MSG_WAITALL))
        said: dict[str, Any] = json.loads(wire.recv(size, socket.MSG_WAITALL))
        files = [self._folder / f"{said['rank']}.{kind}" for kind in ("out", "err")]
        rank = self._warm.start(self._argv, said["env"], os.getcwd(), *files)
        self._ranks.append(Proxied(wire, said["pid"], rank))
        self._selector.register(wire, selectors.EVENT_READ, rank)

    def _let_go(self, one: Proxied) -> None:
        """The proxy ends as the rank has."""
        self._ranks.remove(one)
        with contextlib.suppress(KeyError):
            self._selector.unregister(one.wire)
        status = one.rank.returncode or 0
        with contextlib.suppress(OSError):
            if status < 0:
                os.kill(one.proxy, -status)
            else:
                one.wire.send(str(min(status, 9)).encode())
        one.wire.close()


def run_job(
    ranks: int,
    script: Path,
    *arguments: str,
    seconds: float = PATIENCE,
    env: dict[str, str] | None = None,
    warm: bool = True,
    mpirun: str = "",
) -> Done:
    """Runs a script under mpirun to its end, and sees to it that nothing of the job is left.

    Args:
        ranks: how many.
        script: what each of them runs.
        *arguments: of the script.
        seconds: the deadline, after which the job is killed and the test fails.
        env: variables on top of this process's.
        warm: a template forks the ranks. Otherwise mpirun starts them itself, and finds out how they end.
        mpirun: the path of one other than Open MPI's, which starts the ranks itself.

    Returns:
        How mpirun ended, with its output and that of all ranks.
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
    with tempfile.TemporaryDirectory(prefix="rd") as name:
        folder = Path(name)
        program = [str(script), *arguments]
        is_other = mpirun not in ("", open_mpi())
        proxies = Proxies(template(), program, folder) if warm and not is_other else None
        command = ["-I", "-S", str(PROXY), str(folder), "0"] if proxies else program
        options = [] if is_other else ["--oversubscribe"]
        argv = [mpirun or open_mpi(), "-np", str(ranks), *options, sys.executable, *command]
        with (folder / "mpirun.out").open("wb") as out, (folder / "mpirun.err").open("wb") as err:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
            )
        try:
            has_ended = _wait(process, proxies, seconds)
        finally:
            if process.poll() is None:
                for left in processes_with(MARK, mark):
                    kill_hard(left.pid)
            process.wait()
            if proxies:
                proxies.close()
        outputs, errors = (
            [path.read_text(errors="replace") for path in sorted(folder.glob(f"*.{kind}"))] for kind in ("out", "err")
        )
    if not has_ended:
        pytest.fail(f"{argv} had not ended after {seconds:g} s\n" + "\n".join([*outputs, *errors]))
    wait_until(lambda: not processes_with(MARK, mark), what="every process of the job is gone")
    if proxies:
        template().check_nothing_is_left()
    return Done([process.returncode], outputs, errors)


def _wait(process: subprocess.Popen[bytes], proxies: Proxies | None, seconds: float) -> bool:
    """Whether a job has ended within so many seconds."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        if proxies:
            proxies.serve(0.02)
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(end - time.monotonic())
    return process.returncode is not None
