"""Forks the agent of this machine and its template where a supervisor of tests would execute them: torch is imported once for many tests.

A template takes most of a second of processor time to import torch. Here the supervisor of a warm run is forked from a process that has
done so, its agent is a fork of that supervisor, and the template a fork of the agent, so each is the child of whom it would be the
child of. Whatever else a new Python has, such a process has too: signals, descriptors, environment, arguments, search path, `__main__`.
What belongs to the process before stays alive, unused, below it: nothing of it is ever run or freed again.

What can't be had by a fork is executed as usual: another Python, variables that Python or torch read when they start, a preload.
"""

import atexit
import fcntl
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from engine.node import template
from engine.supervisor.nodes.bridge import boot_command, boot_here
from tests.command_server import INTERPRETER, show

OURS = ("engine", "rankdeck", "rankdeck_command", "tests", "tui")
"""Packages that a process must import itself, from where its own path leads."""

STARTUP = (
    *INTERPRETER,
    "ATEN_",
    "CUDA_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OMP_",
    "OPENBLAS_",
    "PYTORCH_",
    "RANKDECK_TESTS_",
    "TORCH_",
)
"""Beginnings of variables that a process reads when it starts, or when it imports torch."""

OF_NCCL = "TORCH_NCCL_"  # beginning of those that are read when a group is made
HIGH = 512  # descriptors from here on are free in every process of tests


def startup_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a fork can't be given, but for those that lead to modules."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(STARTUP) and name != "PYTHONPATH" and not name.startswith(OF_NCCL)
    }


class ForkedNode:
    """Takes the place of `subprocess._fork_exec`, in this process and whatever it forks. To be made with torch imported."""

    def __init__(self) -> None:
        own = {sys.path[0], *os.environ["PYTHONPATH"].split(os.pathsep)}
        self._path = list(itertools.dropwhile(own.__contains__, sys.path))  # site-packages may lead to the same folders
        self._finders = list(sys.meta_path)
        self._variables = startup_variables(os.environ)
        self._alive: list[object] = []
        self._execute: Callable[..., int] = subprocess._fork_exec  # type: ignore[attr-defined]
        subprocess._fork_exec = self._start  # type: ignore[attr-defined]

    def _start(self, words: list[str], programs: Sequence[bytes], *rest: Any) -> int:
        """The arguments are those of `_posixsubprocess.fork_exec`, which `subprocess.Popen` calls."""
        _, keep, folder, variables, *pipes = rest[:12]
        environment = dict(os.environ)
        if variables is not None:
            environment = {os.fsdecode(k): os.fsdecode(v) for k, _, v in (one.partition(b"=") for one in variables)}
        run = self._program(list(map(os.fsdecode, words)), environment)
        if run is None:
            return self._execute(words, programs, *rest)
        stdin, _, _, stdout, _, stderr, _, failure = pipes
        if pid := os.fork():
            return pid
        try:
            take_streams((stdin, stdout, stderr), set(keep) - {failure})
            if folder is not None:
                os.chdir(folder)
            self._become(list(map(os.fsdecode, words)), environment)
        except BaseException:  # noqa: BLE001 - this process must not go on as its parent
            traceback.print_exc()
            os._exit(1)
        run_to_the_end(run)

    def _program(self, words: list[str], environment: dict[str, str]) -> Callable[[], None] | None:
        """What a fork runs in place of a program; None: it can't."""
        if words[0] != sys.executable:
            return None
        if words in (boot_command(words[0]), boot_here(words[0])):
            return lambda: run_main(["-c", words[-1]], self._path, words[-2], {})
        is_template = len(words) == 4 and words[1] == "-u" and words[2].endswith("/template.py")
        if is_template and startup_variables(environment) == self._variables:
            return lambda: self._run_template(words[2:], environment)
        return None

    def _become(self, words: list[str], environment: dict[str, str]) -> None:
        """Makes this process what a new Python would be, but for the imported modules."""
        gc.freeze()  # what belonged to the process before must not be collected: its descriptors have other owners
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, None):
                signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.environ.clear()
        os.environ.update(environment)
        show(environment, words)
        sys.orig_argv = words
        sys.excepthook = sys.__excepthook__
        atexit._clear()
        threading._threading_atexits.clear()  # type: ignore[attr-defined]
        names = [name for name in sys.modules if name.partition(".")[0] in (*OURS, "__main__")]
        self._alive += [list(sys.meta_path), *(sys.modules.pop(name) for name in names)]
        sys.meta_path[:] = self._finders
        sys.path_importer_cache.clear()

    def _run_template(self, argv: list[str], environment: dict[str, str]) -> None:
        path = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *self._path]
        sys.path[:] = path
        sys.modules[
            "torch"
        ]._import_device_backends()  # as at the end of `import torch`: one is of the run's own library
        text = Path(argv[0]).read_text(encoding="utf-8")
        run_main(argv, [os.path.dirname(argv[0]), *path], text, {"__file__": argv[0]})


def take_streams(streams: tuple[int, int, int], keep: set[int]) -> None:
    """Puts descriptors into the places of stdin, stdout and stderr, and closes all others. `streams`: -1: that of the parent. `keep`: further ones
    that stay open."""
    moved = [fcntl.fcntl(stream, fcntl.F_DUPFD, HIGH) if stream >= 0 else -1 for stream in streams]
    for target, stream in enumerate(moved):
        if stream >= 0:
            os.dup2(stream, target)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in keep:
            try:
                os.close(number)
            except OSError:  # the one that listed them
                continue


def run_main(argv: list[str], path: list[str], text: str, names: dict[str, object]) -> None:
    """Runs a program as `__main__`."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], **names)
    sys.modules["__main__"] = main
    sys.argv, sys.path[:] = argv, path
    exec(compile(text, argv[0] if names else "<string>", "exec", dont_inherit=True), main.__dict__)


def run_to_the_end(run: Callable[[], None]) -> NoReturn:
    """Runs a program and ends this process as the interpreter would, but for its clean-up."""
    status, is_interrupted = 0, False
    try:
        try:
            run()
        except SystemExit as error:
            code = error.code
            status = code if isinstance(code, int) else 0 if code is None else 1
            if code is not None and not isinstance(code, int):
                print(code, file=sys.stderr)
        except KeyboardInterrupt:
            status, is_interrupted = 1, True
        except BaseException:  # noqa: BLE001 - the outermost frame of a process
            traceback.print_exc()
            status = 1
        flush_streams()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        flush_streams()
        if is_interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        os._exit(status & 255)


def flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def import_torch() -> None:
    """Imports what the ranks of most tests need, and prepares this process for forks."""
    template.WARM = tuple(name for name in template.WARM if name.startswith("torch"))  # type: ignore[assignment]
    reason = template.warm() or template.settle()
    assert not reason, reason
    ForkedNode()
