"""rankdeck with the torch and the Python of a user's environment: `make versions`."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.planning.recipes import recipes
from tests.cluster.nodes import Cluster, cluster_for
from tests.installing import UnavailableError
from tests.support import DEADLINE, entries, toml_text, wait_until
from tests.versions.environments import MATRIX, Versions, environment, find_python

ROOT = Path(__file__).parents[2]

NEWER = ("tensor-parallel", "fsdp-gpt", "pipeline")  # recipes that need a newer torch than the oldest

MODULES = entries("versions/versions", "modules")
NAMES = entries("versions/versions", "names")
GROUPS = entries("versions/versions", "groups")

SHORT = {"ddp-mlp": ["--epochs", "2"], **{name: ["--steps", "10"] for name in NEWER}}

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


@pytest.mark.parametrize("program", [MODULES, NAMES, GROUPS], ids=["modules", "names", "groups"])
def test_what_ranks_import_and_private_names_work(python: str, program: str) -> None:
    """Modules of ranks need no newer Python; each function that uses a private name of torch or Python works; groups end."""
    done = subprocess.run([python, "-c", program, str(ROOT)], capture_output=True, text=True, check=False)
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
        recipe = {"name": name, "args": SHORT.get(name, [])}
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


@pytest.mark.parametrize("recipe", NEWER)
def test_recipes_that_need_a_newer_torch_run_or_are_refused_by_name(
    write: Callable[..., str], rankdeck: Command, request: pytest.FixtureRequest, recipe: str
) -> None:
    version = request.node.callspec.params["python"].torch
    least = recipes()[recipe].torch
    done = rankdeck("launch", write(recipe, 2), "--cold")
    if tuple(map(int, version.split(".")[:2])) < tuple(map(int, least.split("."))):
        assert (done.returncode, f"torch {version}" in done.stderr) == (1, True)
        assert f"is too old: the recipe {recipe} needs {least} or newer" in done.stderr
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
