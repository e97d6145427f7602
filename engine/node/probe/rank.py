"""Folders, script and modules of a job, as a rank would find them on a node."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from importlib import machinery, metadata

from engine.node.probe.machine import Message, Paths
from engine.node.torch_files import torch_versions

WRITE_TRIES, FAST_WRITE = 3, 0.1  # tries to write a small file, and seconds that are fast: one slow try may be chance
START_TIME = 8.0  # seconds for Python to start, from a slow file server too
PATH_SIGN = b"\0path\0"

PATH_PROGRAM = (
    "import sys\nsys.stdout.buffer.write('\\0path\\0'.encode()+'\\0'.join(sys.path).encode("
    "sys.getfilesystemencoding(),'surrogateescape'))"
)
"""Prints the rank's module search path. It imports nothing, because the user's folders come first in it."""


def rank_environment(question: Message) -> dict[str, str]:
    """Returns the node's variables, overridden by the profile's. The profile's defaults apply where the node sets nothing."""
    return {**question["env_defaults"], **os.environ, **question["env"]}


def rank_folder(question: Message) -> str | None:
    """Returns a rank's working directory; None if it can't be entered."""
    return question["workdir"] if os.access(question["workdir"], os.X_OK) else None


def rank_path(question: Message) -> Paths:
    """Returns a rank's module search path, the folder of its script first. Raises RuntimeError: Python can't start like a rank; with its
    last line of output."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PATH_PROGRAM],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=rank_environment(question),
            cwd=rank_folder(question),
            timeout=START_TIME,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"Python does not start within {START_TIME:g} s") from None
    _, sign, said = done.stdout.rpartition(PATH_SIGN)
    if done.returncode or not sign:
        raise RuntimeError(last_line(done.stderr) or f"Python ended with status {done.returncode}")
    path = said.decode(sys.getfilesystemencoding(), "surrogateescape").split("\0")
    if path[:1] == [""]:  # absent with PYTHONSAFEPATH
        del path[0]
        first = (
            question["workdir"] if question["module"] else os.path.dirname(os.path.realpath(question["script"] or ""))
        )
        if question["module"] or question["script"]:
            path.insert(0, first)
    return path


def last_line(said: bytes) -> str:
    """Returns the last line that has text: in a traceback, the error."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def job(question: Message) -> Message:
    """Returns what a rank of this job would find. Reads only names and sizes; runs nothing of the user's."""
    answer: Message = {
        "workdir": folder_trouble(question["workdir"]),
        "workdir_writable": os.access(question["workdir"], os.W_OK | os.X_OK),
        "script": script(question["script"]) if question["script"] else None,
        "module": None,
        "torch": "",
        "torch_cuda": None,
        "has_torch": False,
        "mpi4py": "",
        "start": "",
        "spaces": [
            space("temporary folder", tempfile.gettempdir(), writes=True),
            space("working directory", question["workdir"]),
            *(space("home folder", one, writes=True) for one in [os.path.expanduser("~")] if os.path.isdir(one)),
        ],
        "shared_memory": None,
    }
    with contextlib.suppress(OSError):
        memory = os.statvfs("/dev/shm")
        answer["shared_memory"] = memory.f_blocks * memory.f_frsize
    try:
        path = rank_path(question)
    except (OSError, RuntimeError) as error:
        answer["start"] = str(error)
        return answer
    answer["torch"], answer["torch_cuda"] = torch_versions(path)
    answer["mpi4py"] = version("mpi4py", path)
    answer["has_torch"] = bool(answer["torch"]) or is_there("torch", path)
    if question["module"]:
        answer["module"] = is_there(question["module"].partition(".")[0], path)
    return answer


def folder_trouble(folder: str) -> str:
    """Returns why a rank can't start in a folder; empty if it can."""
    try:
        os.listdir(folder)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.X_OK) else os.strerror(errno.EACCES)


def script(path: str) -> Message:
    """Returns size and SHA-256 of a file, or why it can't be read."""
    answer: Message = {"size": 0, "sha256": "", "trouble": ""}
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while True:
                data = file.read(1 << 20)
                if not data:
                    break
                digest.update(data)
                answer["size"] += len(data)
    except OSError as error:
        return {**answer, "trouble": error.strerror or str(error)}
    return {**answer, "sha256": digest.hexdigest()}


def space(what: str, folder: str, *, writes: bool = False) -> Message:
    """Returns free bytes and free files (None if not counted) of the file system of a folder.

    Args:
        what: the folder, in words.
        folder: its path.
        writes: tries to write a file, which a quota may prevent despite free space.
    """
    answer: Message = {"what": what, "path": folder, "bytes": None, "files": None, "trouble": "", "seconds": None}
    try:
        found = os.statvfs(folder)
        answer["bytes"] = found.f_bavail * found.f_frsize
        answer["files"] = found.f_favail if found.f_files else None
        if writes:
            answer["seconds"] = write_time(folder)
    except OSError as error:
        answer["trouble"] = error.strerror or str(error)
    return answer


def write_time(folder: str) -> float:
    """Returns the seconds in which a small file reaches the disk: the shortest of a few tries, if the first is slow. Raises OSError."""
    shortest = float("inf")
    for _ in range(WRITE_TRIES):
        began = time.monotonic()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
        shortest = min(shortest, time.monotonic() - began)
        if shortest < FAST_WRITE:
            break
    return shortest


def version(name: str, path: Paths) -> str:
    """Returns the version of an installed distribution, from its metadata; empty if there is none."""
    with contextlib.suppress(Exception):  # a damaged installation may raise anything
        for found in metadata.distributions(name=name, path=path):
            return str(found.version)
    return ""


def is_there(name: str, path: Paths) -> bool:
    """Whether a module of that name exists. It is not run."""
    with contextlib.suppress(Exception):
        return name in sys.builtin_module_names or machinery.PathFinder.find_spec(name, path) is not None
    return False
