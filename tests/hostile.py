"""Profiles of a stranger with every key of the schema set, and a fixture in which every process start and every connect fails."""

import contextlib
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from engine.core.plan.profile import Section, all_keys, table_of
from tests.support import toml_text

STARTS = (
    "subprocess.Popen",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "os.exec",
    "os.system",
    "socket.connect",
    "pty.spawn",
)
"""Audit events of processes and connections. asyncio's processes are those of `subprocess`."""

VALUES: dict[tuple[str, ...], list[Any]] = {
    ("schema",): [1],
    ("backend", "name"): ["gloo", "nccl", "mpi", "ucc", "auto"],
    ("backend", "fallback"): [["ucc", "nccl"], ["gloo"]],
    ("layout", "nodes"): ["host[1-2]", "@rack", ["localhost"]],
    ("layout", "hostfile"): ["hosts"],
    ("layout", "slurm"): [123, "123_4", "current"],
    ("layout", "pbs", "walltime"): ["4:00:00"],
    ("layout", "pbs", "warn"): [0],
    ("layout", "transport"): ["local", "ssh", "slurm", "pbs"],
    ("layout", "ssh_options"): [["-oProxyCommand=./evil", "-F./evil"]],
    ("recipe", "name"): ["linear"],
    ("recipe", "script"): ["train.py", "./evil"],
    ("recipe", "module"): ["evil"],
    ("launch", "python"): ["./evil", ".venv/bin/python", "evil"],
    ("launch", "setup"): [". ./evil", "./evil"],
    ("launch", "preload"): [["evil"], "auto"],
    ("launch", "stop_ladder"): [[["SIGKILL", 1.0]]],
    ("metrics", "patterns"): [["(?P<loss>(a+)+$)"]],
    ("metrics", "stop_when"): ["loss > sweep.best * 2 after 10"],
    ("env",): [{"PATH": ".", "LD_PRELOAD": "./evil", "PYTHONPATH": "."}],
    ("backend", "env"): [{"PATH": ".", "LD_PRELOAD": "./evil"}],
}
"""Values for keys that take no other ones, or for which some are worse than others."""

_started: list[str] | None = None
_has_hook = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _started is not None and event in STARTS:
        _started.append(f"{event} {arguments!r}"[:200])
        raise PermissionError(f"{event} in a test in which nothing may start")


@contextlib.contextmanager
def nothing_starts() -> Iterator[list[str]]:
    """Makes every process start and every connect of this process fail. Gives what was tried."""
    global _started, _has_hook
    if not _has_hook:
        sys.addaudithook(_watch)  # it can't be taken away
        _has_hook = True
    _started = []
    try:
        yield _started
    finally:
        _started = None


def hostile_folder(work: Path) -> Path:
    """Fills a folder with what the profiles name. Returns the folder of the profiles."""
    for name in ("evil", "train.py", "wrap.sh", "mpirun", "ssh", "squeue", ".venv/bin/python"):
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {work}/ran\n")
        path.chmod(0o755)
    torch = work / ".venv/lib/python3.11/site-packages/torch/__init__.py"
    torch.parent.mkdir(parents=True)
    torch.touch()
    (work / "hosts").write_text("host1\nhost2\n")
    (work / ".rankdeck").mkdir()
    return work / ".rankdeck"


def hostile_profiles() -> Iterator[tuple[str, dict[str, Any]]]:
    """Profiles by the key that each sets, on backends and nodes for which a plan asks programs."""
    for path, kind in all_keys().items():
        for value in VALUES.get(path) or list(_values(kind)):
            for backend, nodes in (("mpi", "localhost"), ("auto", "host1,host2")):
                data: dict[str, Any] = {"schema": 1, "name": "job", "backend": {"name": backend}}
                data |= {"layout": {"nodes": nodes}, "recipe": {"script": "train.py"}}
                if path[:2] in (("layout", "hostfile"), ("layout", "slurm"), ("layout", "pbs")):
                    data["layout"] = {}
                if path[0] == "recipe" and path[1] != "args":
                    data["recipe"] = {}
                if path[:2] in (("layout", "slurm"), ("layout", "pbs")) and len(path) > 2:
                    data["layout"] = {path[1]: {"nodes": 2, "ranks_per_node": 1}}
                    data["backend"] = {"name": "mpi" if backend == "mpi" else "gloo"}
                table = data
                for name in path[:-1]:
                    table = table.setdefault(name, {})
                table[path[-1]] = value
                yield ".".join(path), data


def _values(kind: Any) -> Iterator[Any]:
    """Some values of a key."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        yield from parts
    elif origin in (types.UnionType, typing.Union):
        for part in parts:
            if part is not type(None) and not (isinstance(part, type) and issubclass(part, Section)):
                yield from _values(part)
    elif origin is tuple:
        yield [next(_values(parts[0]))]
    elif origin is dict:
        yield {"PATH": "."}
    elif table_of(kind) is None:
        yield {str: "./evil", int: 1, float: 1.0, bool: True}[kind]


def write_hostile(folder: Path, name: str, data: dict[str, Any]) -> Path:
    """Writes a profile."""
    path = folder / f"{name}.toml"
    path.write_text(toml_text({**data, "name": name}))
    return path
