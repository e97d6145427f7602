"""rankdeck with the torch and the Python of a user's environment: `make versions`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Cluster, cluster_for
from tests.installing import UnavailableError
from tests.support import DEADLINE, toml_text, wait_until
from tests.versions.environments import MATRIX, Versions, environment, find_python

ROOT = Path(__file__).parents[2]

MODULES = """
import importlib, pathlib, sys
sys.path.insert(0, sys.argv[1])
for path in sorted(pathlib.Path(sys.argv[1], "rankdeck").rglob("*.py")):
    name = ".".join(path.relative_to(sys.argv[1]).with_suffix("").parts)
    if name.rpartition(".")[2] in ("__init__", "_command", "_sharded") or ".c10d._" in name:
        continue  # those that need a newer torch, or a library
    try:
        importlib.import_module(name)
    except ImportError as error:  # an API of a newer torch
        assert "torch" in (error.name or ""), error
"""

PRIVATE = """
import atexit, multiprocessing.pool, sys, weakref
from torch.distributed import distributed_c10d as c10d
names = {atexit: "_clear _ncallbacks", sys: "_current_frames _getframe", weakref.finalize: "_registry", c10d: "_world _tensor_to_object"}
assert all(hasattr(owner, name) for owner in names for name in names[owner].split())
assert multiprocessing.pool.ThreadPool(1)._state == "RUN"
"""
"""Private names of Python and torch that the engine's template, `rankdeck` and the recipes use."""

GROUPS = """
import faulthandler, sys
sys.path.insert(0, sys.argv[1])
faulthandler.dump_traceback_later(100, exit=True)
import torch, torch.distributed as dist
from rankdeck._autoload import register
from rankdeck._torch_compat import has_marked, mark_key, set_once
register()
store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
assert set_once(store, "once", "first") == set_once(store, "once", "second") == b"first"
mark_key(store, "once")
assert has_marked(store, ["once"]) and not has_marked(store, ["once", "there"]) and not has_marked(store, ["there"])
for _ in range(10):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for _ in range(20):
        value = torch.ones(1000)
        value.label = "of the interpreter"
        dist.all_reduce(value, async_op=True)
        del value  # a thread of torch frees it, for which it needs the interpreter's lock
    dist.destroy_process_group()
"""

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", params=MATRIX, ids=str)
def python(request: pytest.FixtureRequest) -> Iterator[str]:
    """The Python of an environment. Skips where it can't be had."""
    versions: Versions = request.param
    try:
        with environment(versions) as found:
            yield str(found)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def rankdeck(tmp_path: Path) -> Iterator[Command]:
    """The command, with folders of its own, and with all of torch in its processes."""
    folders = {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("STATE", "CONFIG")}
    runtime = tempfile.mkdtemp(prefix="rd")  # the path of a socket is short
    known = {name: value for name, value in os.environ.items() if not name.startswith(("RANKDECK_", "PYTHON"))}
    env = {**known, **folders, "XDG_RUNTIME_DIR": runtime}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "rankdeck_command", *words]
        return subprocess.run(
            argv,
            env=env,
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=3 * DEADLINE,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    yield call
    for run in json.loads(call("ps", "--json").stdout or "[]"):
        call("stop", run["run"])


def status(rankdeck: Command, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rankdeck("status", run, "--json").stdout)
    return found


def test_modules_of_ranks_need_no_newer_python(python: str) -> None:
    done = subprocess.run([python, "-c", MODULES, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_private_names_are_there(python: str) -> None:
    done = subprocess.run([python, "-c", PRIVATE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_groups_end_and_values_are_set_once(python: str) -> None:
    done = subprocess.run([python, "-c", GROUPS, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes that are reached by ssh. Their ranks have the environment; rankdeck has its own."""
    yield from cluster_for(tmp_path_factory, 2)


@pytest.fixture
def write(python: str, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Writes a profile of a recipe, whose ranks are on this machine or, as `by` says, on nodes."""

    def write(name: str, ranks: int, by: str = "local", backend: str = "gloo", **launch: object) -> str:
        layout = {"nodes": "localhost", "ranks_per_node": ranks}
        if by == "ssh":
            options = request.getfixturevalue("nodes").ssh_options
            layout = {"nodes": "node[1-2]", "ranks_per_node": ranks // 2, "ssh_options": options}
        recipe = {"name": name, **({"args": ["--epochs", "2"]} if name == "ddp-mlp" else {})}
        sections = {"backend": {"name": backend}, "layout": layout, "recipe": recipe}
        path = tmp_path / "profile.toml"
        path.write_text(
            toml_text({"schema": 1, "name": "versions", **sections, "launch": {"python": python, **launch}})
        )
        return str(path)

    return write


@pytest.mark.parametrize("warm", [True, False])
def test_smoke_trains(write: Callable[..., str], rankdeck: Command, warm: bool) -> None:
    done = rankdeck("launch", write("linear", 2, warm=warm), "--cold")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "final loss" in done.stdout


@pytest.mark.parametrize("by", ["local", "ssh"])
@pytest.mark.parametrize("recipe", ["hello", "ddp-mlp"])
def test_recipes_run(write: Callable[..., str], rankdeck: Command, recipe: str, by: str) -> None:
    done = rankdeck("launch", write(recipe, 2, by), "--cold")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mpirun_starts_ranks_or_the_torch_is_refused_by_name(
    write: Callable[..., str], rankdeck: Command, request: pytest.FixtureRequest
) -> None:
    version = request.node.callspec.params["python"].torch
    done = rankdeck("launch", write("ddp-mlp", 2, backend="mpi"), "--cold")
    if version.startswith(("2.1.", "2.2.")):
        assert (done.returncode, f"torch {version}" in done.stderr) == (1, True)
        assert "is too old: mpi needs 2.4 or newer" in done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("by", ["local", "ssh"])
def test_a_killed_rank_rejoins_the_quickstart(write: Callable[..., str], rankdeck: Command, by: str) -> None:
    run = rankdeck("launch", write("gpt", 4, by), "--cold", "--detach").stdout.split()[0]

    def step(rank: int = 0) -> int:
        found = status(rankdeck, run)
        assert found["state"] not in ("failed", "stopped"), found
        return found["ranks"][rank]["step"] or 0

    wait_until(lambda: step() > 5, 2 * DEADLINE, what="ranks train")
    assert "rank" in rankdeck("stacks", run).stdout
    rankdeck("kill", run, "--rank", "1")
    wait_until(lambda: status(rankdeck, run)["state"] == "holding", what="the run holds")
    last = status(rankdeck, run)["ranks"][0]["step"]
    rankdeck("restart", run)
    wait_until(lambda: step(1) > last + 5, 2 * DEADLINE, what="all ranks train again")
    found = status(rankdeck, run)
    assert (found["attempt"], [rank["state"] for rank in found["ranks"]]) == (0, ["running"] * 4)


def test_python_3_8_is_refused_by_name(rankdeck: Command) -> None:
    try:
        python = find_python("3.8")
    except UnavailableError as error:
        pytest.skip(str(error))
    for word in ("check", "launch"):
        done = rankdeck(word, "smoke", "--set", f"launch.python={python}")
        assert done.returncode != 0
        assert "is too old: ranks need 3.9 or newer" in done.stdout + done.stderr
