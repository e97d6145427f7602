"""Forks the processes of the `rankdeck` command, and their supervisors, for tests: the imports, which take a fifth of a second, happen once.

A forked process is one of its own, with the arguments, environment, working directory and umask of whoever asks; /proc shows them too. It leaves
without the interpreter's clean-up. A test that needs more of the real start (another Python, variables that Python reads at its start,
signals) runs `COMMAND` as a program, and so its supervisor is one; the guards start supervisors as programs, too.

The supervisor of a run whose script uses torch is forked from a process that has imported it; its agent and template are forks, too
(`tests/forked_node.py`).

As a program, `python command_server.py FD`: FD is a socket of type SOCK_STREAM. A request is a pickled `Request` behind its length
in four bytes, sent with the command's standard output and error. The replies: the pid, then the exit status, negative for a signal,
as four bytes each. One request at a time. The server ends when the other end closes. `python command_server.py FD warm` forks supervisors
alone, with torch imported: FD is a socket of type SOCK_SEQPACKET.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, NoReturn, Self

ROOT = Path(__file__).resolve().parents[1]
INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
"""Beginnings of variables that a Python, or its C library, reads at its start only."""

ROOM = {"ROOM": "x" * (1 << 16)}  # of a server's environment: where forked processes show their own


class Request(NamedTuple):
    """A command to run."""

    words: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    umask: int


def interpreter_variables(environment: dict[str, str]) -> dict[str, str]:
    """The variables that decide how a Python starts."""
    return {name: value for name, value in environment.items() if name.startswith(INTERPRETER)}


class CommandServer:
    """A server process, from the test's side. `environment`: its variables; commands that differ in `interpreter_variables` must not be asked of it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.variables = interpreter_variables(environment)
        self.lock = threading.Lock()
        """Held by whoever asks."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno()), "x" * 4096],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={name: value for name, value in environment.items() if not name.startswith("RANKDECK_")} | ROOM,
                cwd="/",
                pass_fds=[theirs.fileno()],
            )

    def run(
        self, words: tuple[str, ...], environment: dict[str, str], folder: str, seconds: float
    ) -> tuple[int, bytes, bytes]:
        """Runs a command to its end, with nothing on its standard input.

        Args:
            words: after `rankdeck`.
            environment: all its variables.
            folder: its working directory.
            seconds: after which it is killed.

        Returns:
            Exit status (negative: the signal that ended it), standard output and error.

        Raises:
            subprocess.TimeoutExpired: it took longer.
        """
        umask = os.umask(0o077)
        os.umask(umask)
        request = pickle.dumps(Request(words, environment, folder, umask))
        with os.fdopen(os.memfd_create("out"), "rb") as out, os.fdopen(os.memfd_create("err"), "rb") as err:
            header = len(request).to_bytes(4, "little")
            socket.send_fds(self._socket, [header], [out.fileno(), err.fileno()])
            self._socket.sendall(request)
            pid, is_late = self._reply(None), False
            try:
                status = self._reply(seconds)
            except TimeoutError:
                is_late = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                status = self._reply(None)
            printed = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in (out, err)]
        if is_late:
            raise subprocess.TimeoutExpired(["rankdeck", *words], seconds, printed[0], printed[1])
        return status, printed[0], printed[1]

    def _reply(self, seconds: float | None) -> int:
        self._socket.settimeout(seconds)
        data = self._socket.recv(4, socket.MSG_WAITALL)
        assert len(data) == 4, "the server of commands has ended"
        return int.from_bytes(data, "little", signed=True)


def serve(wire: socket.socket) -> Request | None:
    """Forks a process for each request. Returns its request in such a process, and None in the server when nobody asks any more."""
    while True:
        header, descriptors, *_ = socket.recv_fds(wire, 4, 2)
        if not header:
            return None
        data = wire.recv(int.from_bytes(header, "little"), socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            for target, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, target)
                os.close(descriptor)
            wire.close()
            request: Request = pickle.loads(data)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        wire.sendall(pid.to_bytes(4, "little"))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        wire.sendall(status.to_bytes(4, "little", signed=True))


class Forking:
    """Takes the place of the module `subprocess` where a command starts its supervisor: another process forks it. `wire`: to that process."""

    DEVNULL, PIPE = subprocess.DEVNULL, subprocess.PIPE

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire

    def Popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: IO[bytes],
        start_new_session: bool,
    ) -> Supervisor | subprocess.Popen[bytes]:
        """As of `subprocess`, for these arguments."""
        if argv[3] != "supervise":
            return subprocess.Popen(
                argv, env=env, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=start_new_session
            )
        umask = os.umask(0o077)
        os.umask(umask)
        request = Request(tuple(argv[3:]), dict(env), os.getcwd(), umask)
        read, write = os.pipe()
        socket.send_fds(self._wire, [pickle.dumps(request)], [write, stderr.fileno()])
        os.close(write)
        return Supervisor(open(read, "rb"))


class Supervisor:
    """What a command needs of the `Popen` of a supervisor. `stdout`: what it says."""

    def __init__(self, stdout: IO[bytes]) -> None:
        self.stdout = stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdout.close()


class WarmServer:
    """Forks supervisors with torch imported. The process is started when the first is asked for."""

    def __init__(self) -> None:
        self._wire: socket.socket | None = None

    def takes(self, request: Request) -> bool:
        """Whether ranks of this run are to be forked, and may do without parts of torch."""
        try:
            is_warm = json.loads(Path(request.words[1], "plan.json").read_bytes())["launch"]["warm"] is True
        except (OSError, ValueError, KeyError, IndexError):
            return False
        return is_warm and request.environment.get("RANKDECK_TESTS_TORCH") != "whole"

    def send(self, data: bytes, descriptors: list[int]) -> None:
        """Passes a request on."""
        if self._wire is None:
            self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                # As a template is started: -u decides what the output of ranks goes through.
                argv = [sys.executable, "-u", str(Path(__file__).resolve()), str(theirs.fileno()), "warm", "x" * 4096]
                env = {**os.environ, "OMP_NUM_THREADS": "1"}
                subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=env, cwd="/", pass_fds=[theirs.fileno()])
        socket.send_fds(self._wire, [data], descriptors)


def serve_supervisors(wire: socket.socket, warm: WarmServer | None = None) -> Request | None:
    """The same as `serve` for supervisors, whose requests have one message each. They fork again and leave no child behind. `wire`: where requests
    come from. `warm`: takes those of warm runs."""
    while True:
        data, descriptors, *_ = socket.recv_fds(wire, 1 << 20, 2)
        if not data:
            return None
        if warm is not None and warm.takes(pickle.loads(data)):
            warm.send(data, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        pid = os.fork()
        if pid == 0:
            os.setsid()
            wire.close()
        for target, descriptor in enumerate(descriptors, 1):
            if pid == 0:
                os.dup2(descriptor, target)
            os.close(descriptor)
        if pid == 0:
            request: Request = pickle.loads(data)
            return request
        os.waitpid(pid, 0)


def show(environment: Mapping[str, str], argv: Sequence[str]) -> None:
    """Makes /proc show what a process would have that is no fork. The variables by which tests find processes come first."""
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    names = sorted(environment, key=lambda name: not name.startswith("RANKDECK_"))
    texts = [argv, [f"{name}={environment[name]}" for name in names]]
    for texts_of, begin, end in zip(texts, (int(stat[45]), int(stat[47])), (int(stat[46]), int(stat[48])), strict=True):
        data = b"".join(os.fsencode(text) + b"\0" for text in texts_of)[: end - begin - 1]
        ctypes.memmove(begin, data.ljust(end - begin, b"\0"), end - begin)


def run_command(request: Request) -> NoReturn:
    """Runs a command in this process, which a server has forked."""
    os.umask(request.umask)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = [str(ROOT / "rankdeck_command.py"), *request.words]
    show(request.environment, [sys.executable, *sys.argv])
    from rankdeck_command import main

    status: object = 1
    try:
        status = main()
    except SystemExit as error:
        status = error.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
    except KeyboardInterrupt:
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    except Exception:  # noqa: BLE001 - what a program would end with
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        threading._shutdown()  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def main() -> None:
    """Imports what commands import, and serves."""
    sys.path[0] = str(ROOT)
    import rankdeck_command  # noqa: F401
    from engine.client import engine, run  # noqa: F401
    from engine.commands import cli, follow  # noqa: F401
    from engine.supervisor import main as supervisor  # noqa: F401

    for module in {*cli.MODULES.values()}:
        import_module(f"engine.commands.{module}")
    wire = socket.socket(fileno=int(sys.argv[1]))
    if sys.argv[2] == "warm":
        from tests.forked_node import import_torch

        import_torch()
        request = serve_supervisors(wire)
    else:
        gc.freeze()  # a collection in a forked process would copy shared memory
        request = serve_commands(wire)
    if request is not None:
        run_command(request)


def serve_commands(wire: socket.socket) -> Request | None:
    """Serves as the server of commands or, in another process, of supervisors. Returns as `serve`."""
    from engine.client import early, starting

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        wire.close()
        ours.close()
        return serve_supervisors(theirs, WarmServer())
    theirs.close()
    starting.subprocess = Forking(ours)  # type: ignore[assignment, attr-defined]
    early.start_early = lambda: None  # such a supervisor is executed
    return serve(wire)


if __name__ == "__main__":
    main()
