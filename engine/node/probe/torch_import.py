"""Questions that a child process with the Python of a rank answers, because it may crash or hang: importing torch, or a backend's program."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

from engine.node.probe.channel import EXIT_CUT_OFF, wait
from engine.node.probe.machine import Message, count_gpus
from engine.node.probe.rank import last_line, rank_environment, rank_folder, rank_path

SMI_TIME = 10.0  # seconds for `nvidia-smi`, which may have to load the driver

END_WITH_PROBE = """
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass
"""
"""Ends a child with the probe, however that ends. It imports a module, so the search path must be set before."""

TORCH_PROGRAM = f"""
import sys
descriptor, sys.path[:], sys.argv[1:] = int(sys.argv[1]), sys.argv[2:], []
{END_WITH_PROBE}
import torch
facts = dict(version=str(torch.__version__), cuda=str(torch.version.cuda or ""))
try:
    facts["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    import torch.distributed as dist
    facts["distributed"] = dist.is_available()
    facts["backends"] = [
        name for name in ("gloo", "nccl", "mpi", "ucc")
        if dist.is_available() and getattr(dist, "is_" + name + "_available", lambda: False)()
    ]
    if "nccl" in facts["backends"]:
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    facts["trouble"] = type(error).__name__ + ": " + str(error)[:1000]
import os
os.write(descriptor, repr(facts).encode("utf-8", "replace"))
os._exit(0)
"""
"""Imports torch like a rank and reports its facts: `-c PROGRAM descriptor path…`. It exits without cleaning up, which takes time and proves nothing."""

RUN_PROGRAM = f"""
import sys
{END_WITH_PROBE}
exec(compile(sys.argv.pop(), "rankdeck", "exec"))
"""
"""Runs another program: `-c RUN_PROGRAM program`."""

LONGEST_ANSWER = 1 << 16  # bytes that are kept of a child's facts
LONGEST_WORDS = 1 << 12  # bytes kept of the end of a program's output; what is before may come from Python's start


def torch(question: Message) -> Message:
    """Returns the result of importing torch in a child, whose crash or hang is a result too."""
    answer: Message = {"facts": None, "trouble": "", "timed_out": False, "devices": devices()}
    try:
        path = rank_path(question)
    except (OSError, RuntimeError) as error:
        return {**answer, "trouble": str(error)}
    read, write = os.pipe()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-c", TORCH_PROGRAM, str(write), *path],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=[write],
            env=rank_environment(question),
            cwd=rank_folder(question),
        )
        os.close(write)
        try:
            told = read_all(read, question["seconds"])
        finally:
            os.close(read)
            child.kill()
            status = child.wait()
        if told is None:
            return {**answer, "timed_out": True}
        if told:
            return {**answer, "facts": ast.literal_eval(told.decode("utf-8", "replace"))}
        said.seek(max(0, said.seek(0, os.SEEK_END) - 4096))
        words = last_line(said.read()) if status == 1 else ""
        ended = f"status {status}" if status >= 0 else f"signal {-status}"
        with contextlib.suppress(ValueError):
            ended = signal.Signals(-status).name
        return {**answer, "trouble": words or f"it ended with {ended}"}


def run(question: Message) -> Message:
    """Returns the output of a program in the Python and the environment of a rank, outside the folders of the user's script."""
    environment = rank_environment(question)
    if question["library_path"]:
        folders = [question["library_path"], environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
    read, write = os.pipe()
    try:
        child = subprocess.Popen(
            [question["python"], "-c", RUN_PROGRAM, question["program"]],  # it may be a wrapper that sets library paths
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
        )
    except OSError:
        os.close(read)
        return {"text": "", "status": None}
    finally:
        os.close(write)
    told = None
    try:
        told = read_all(read, question["seconds"])
    finally:
        os.close(read)
        if told is None:
            child.kill()
        status = child.wait()
    if told is None:
        return {"text": "", "status": None}
    return {"text": told[-LONGEST_WORDS:].decode("utf-8", "replace"), "status": status}


def read_all(descriptor: int, seconds: float) -> bytes | None:
    """Reads a pipe until it is closed; returns None if that takes longer. Exits if the process that asked has ended."""
    deadline, data = time.monotonic() + seconds, b""
    while True:
        ready = wait([descriptor, 0], deadline)
        if 0 in ready:  # the parent asks nothing before this is answered, so stdin was closed
            sys.exit(EXIT_CUT_OFF)
        if not ready:
            return None
        more = os.read(descriptor, 1 << 16)
        if not more:
            return data
        data = (data + more)[-LONGEST_ANSWER:]


def devices() -> list[Message]:
    """Returns name and memory (bytes) of every NVIDIA device. Unlike torch, `nvidia-smi` creates no context on each device."""
    if not count_gpus():
        return []
    fields = "--query-gpu=name,memory.total,memory.free"
    try:
        done = subprocess.run(
            ["nvidia-smi", fields, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SMI_TIME,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in done.stdout.decode(errors="replace").splitlines():
        name, *sizes = (word.strip() for word in line.rsplit(",", 2))
        if len(sizes) == 2 and all(size.isdigit() for size in sizes):
            total, free = (int(size) << 20 for size in sizes)
            found.append({"name": name, "total": total, "free": free})
    return found
