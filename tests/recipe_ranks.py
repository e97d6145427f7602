"""Runs the script of a recipe in ranks that a warm template forks: as rankdeck, torchrun or plain `python` start them; over MPI and UCC.

    done = run_recipe(tmp_path, "linear", "--steps", "20", world=4)
    assert done.statuses == [0] * 4
    assert done.final("loss") < 0.05

Every process of tests has one template, so a rank costs milliseconds. Give all runs that share checkpoints the same folder.
"""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch.distributed as dist

from tests.c10d.mpirun import need_mpi, run_job
from tests.support import PATIENCE, ROOT, complete_lines, entries
from tests.ucc.ranks import run_ranks
from tests.ucc.system import need_ucc
from tests.warm_ranks import Forked, template

RECIPES = ROOT / "rankdeck/recipes"
Launcher = Literal["rankdeck", "torchrun", "python"]
Backend = Literal["gloo", "mpi", "ucc"]

FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

KILLED_AT = entries("recipe_ranks", "killed_at")

SERIES = entries("recipe_ranks", "series")


class Ran(NamedTuple):
    """How the ranks of a recipe have ended."""

    statuses: list[int]  # exit status of each rank; over MPI only that of mpirun
    outputs: list[str]  # what each rank has printed; errors come last over MPI and UCC
    metrics: list[list[dict[str, Any]]]  # of each rank, the lines that `rankdeck.log` wrote; over MPI and UCC none

    def final(self, name: str) -> float:
        """The figure in the only line `final NAME FIGURE` of rank 0. No other rank has one."""
        found = [re.findall(rf"^final {name} (\S+)$", output, re.MULTILINE) for output in self.outputs]
        assert len(found[0]) == 1, self.outputs[0]
        assert not any(found[1:]), "only rank 0 prints the final line"
        value = float(found[0][0])
        assert math.isfinite(value)
        return value

    def losses(self, rank: int = 0, name: str = "loss") -> dict[int, float]:
        """A series of `rankdeck.log`, by step."""
        return {line["step"]: line[name] for line in self.metrics[rank] if name in line}


class Gang:
    """The ranks of one attempt of a recipe, with a store that none of them hosts.

    Args:
        folder: where the ranks run, and where their files go.
        script: the file and its arguments.
        world: number of ranks; with the launcher "python" 1.
        launcher: whose environment the ranks have. With all of them `rankdeck.log` writes to a file.
        env: variables besides.
    """

    def __init__(
        self,
        folder: Path,
        script: list[str],
        world: int,
        launcher: Launcher = "rankdeck",
        env: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.world, self._launcher, self._env = folder, world, launcher, env or {}
        self.store = _store()
        self.ranks = [self._start(rank, script) for rank in range(world)]

    def _start(self, rank: int, script: list[str]) -> Forked:
        env = {one: os.environ[one] for one in os.environ if not one.startswith("RANKDECK_") and one not in FOREIGN}
        env |= {"OMP_NUM_THREADS": "1", "RANKDECK_METRICS": str(self.folder / f"{rank}.metrics")}
        if self._launcher != "python":
            env |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self.world),
                "LOCAL_WORLD_SIZE": str(self.world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "0",
            }
        if self._launcher == "rankdeck":
            env |= {
                "RANKDECK_BACKEND": "gloo",
                "RANKDECK_TIMEOUT": f"{PATIENCE:g}",
                "RANKDECK_CHECKPOINTS": str(self.folder.parent / "checkpoints"),
            }
        else:
            env["CUDA_VISIBLE_DEVICES"] = ""
        return template().start(script, {**env, **self._env}, self.folder, self.folder / f"{rank}.log")

    def wait(self) -> list[int]:
        """Exit codes, by rank. After the deadline the ranks are killed, and the test fails."""
        until = time.monotonic() + PATIENCE
        try:
            return [rank.wait(max(0.1, until - time.monotonic())) for rank in self.ranks]
        except subprocess.TimeoutExpired as error:
            self.end()
            raise AssertionError("\n".join(self.log(rank) for rank in range(self.world))) from error

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Looks often, and at the ranks too: one that has ended can't bring the condition about."""
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, "the deadline has passed"
            assert all(rank.poll() is None for rank in self.ranks), self.log(0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.ranks[0].wait(0.01)

    def log(self, rank: int) -> str:
        """What a rank has printed."""
        return (self.folder / f"{rank}.log").read_text(encoding="utf-8")

    def metrics(self, rank: int) -> list[dict[str, Any]]:
        """What a rank has reported with `rankdeck.log`."""
        return [json.loads(line) for line in complete_lines(self.folder / f"{rank}.metrics").splitlines()]

    def losses(self, rank: int) -> dict[int, float]:
        """By step."""
        return {line["step"]: line["loss"] for line in self.metrics(rank) if "loss" in line}

    def end(self) -> None:
        """Kills what there is of the ranks."""
        for rank in self.ranks:
            rank.kill()
            rank.wait(PATIENCE)


def _store() -> Any:
    """A store that none of the ranks hosts."""
    return dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]


def start_recipe(
    folder: Path,
    recipe: str,
    *words: str,
    world: int = 2,
    launcher: Launcher = "rankdeck",
    killed_at: int = 0,
    killed_by: int = signal.SIGKILL,
    env: dict[str, str] | None = None,
) -> Gang:
    """Starts a recipe over gloo. The caller ends what it has started: `Gang.wait` or `Gang.end`.

    Args:
        folder: of the run. Each start is an attempt with a folder of its own; under rankdeck all share `folder/checkpoints`.
        recipe: its name, such as `ddp-mlp`.
        *words: its arguments.
        world: number of ranks.
        launcher: see `Gang`.
        killed_at: every rank gets a signal when it has reported the loss of this step; 0: none does.
        killed_by: that signal.
        env: variables besides.
    """
    attempt = folder / f"attempt_{len(list(folder.glob('attempt_*')))}"
    script = [str(RECIPES / f"{recipe.replace('-', '_')}.py"), *words]
    if killed_at:
        attempt.mkdir(parents=True)
        killer = attempt / "killer.py"
        killer.write_text(KILLED_AT)
        script = [str(killer), f"{killed_at}:{int(killed_by)}", *script]
    return Gang(attempt, script, 1 if launcher == "python" else world, launcher, env)


def run_recipe(
    folder: Path,
    recipe: str,
    *words: str,
    world: int = 2,
    backend: Backend = "gloo",
    launcher: Launcher = "rankdeck",
    killed_at: int = 0,
    killed_by: int = signal.SIGKILL,
    env: dict[str, str] | None = None,
) -> Ran:
    """Runs a recipe to its end. Skips the test where the backend is missing.

    Args: see `start_recipe`. `launcher`, `killed_at` and `killed_by` are for gloo only. `backend`: that of the ranks.
    """
    if backend == "gloo":
        how: dict[str, Any] = {"launcher": launcher, "killed_at": killed_at, "killed_by": killed_by, "env": env}
        gang = start_recipe(folder, recipe, *words, world=world, **how)
        statuses = gang.wait()
        ranks = range(gang.world)
        return Ran(statuses, [gang.log(rank) for rank in ranks], [gang.metrics(rank) for rank in ranks])
    need_mpi() if backend == "mpi" else need_ucc()
    env = {"RANKDECK_BACKEND": backend, "RANKDECK_CHECKPOINTS": str(folder / "checkpoints"), **(env or {})}
    script = RECIPES / f"{recipe.replace('-', '_')}.py"
    done = (run_job if backend == "mpi" else run_ranks)(world, script, *words, env=env)
    # The last output over MPI is that of mpirun.
    outputs = [output + error for output, error in zip(done.outputs, done.errors, strict=True)][:world]
    return Ran(done.statuses, outputs, [[] for _ in outputs])


def same_under_torchrun(ours: Ran, folder: Path, recipe: str, *words: str) -> Ran:
    """Runs a recipe that has run under rankdeck under torchrun: every loss, and the final line, are the same."""
    theirs = run_recipe(folder, recipe, *words, world=len(ours.statuses), launcher="torchrun")
    assert not any(ours.statuses + theirs.statuses), theirs.outputs
    for rank in range(len(ours.statuses)):
        assert theirs.losses(rank) == ours.losses(rank)
    assert _final_lines(theirs) == _final_lines(ours)
    return theirs


def resumed(unbroken: Ran, folder: Path, recipe: str, *words: str, killed_at: int, after: int) -> Ran:
    """Runs a recipe whose ranks are killed in a step, and once more: from step `after` on, it goes on as the unbroken run."""
    world = len(unbroken.statuses)
    killed = run_recipe(folder, recipe, *words, world=world, killed_at=killed_at)
    assert any(killed.statuses), killed.outputs  # of `spawn`, a process of a rank is killed
    again = run_recipe(folder, recipe, *words, world=world)
    assert not any(unbroken.statuses + again.statuses), again.outputs
    for rank in range(world):
        assert again.losses(rank) == {step: loss for step, loss in unbroken.losses(rank).items() if step > after}
    assert _final_lines(again) == _final_lines(unbroken)
    return again


def _final_lines(ran: Ran) -> list[str]:
    return [line for line in ran.outputs[0].splitlines() if line.startswith("final ")]


def run_series(folder: Path, runs: Mapping[str, Sequence[str]], world: int, backend: Backend) -> dict[str, Ran]:
    """Runs recipes one after the other in the same ranks, which costs less than ranks for each. Skips where the backend is missing.

    Args:
        folder: of all of them.
        runs: arguments by the names of the recipes.
        world: number of ranks.
        backend: that of the ranks.

    Returns:
        How each has ended, without metrics. What a rank has not come to has the status -1.
    """
    if backend != "gloo":
        need_mpi() if backend == "mpi" else need_ucc()
    script, ran = folder / "series.py", folder / "ran"
    script.write_text(SERIES)
    ran.mkdir()
    # A process group would find addresses of the one before it in the same store.
    stores = {name: _store() for name in runs}
    scripts = [(name, str(RECIPES / f"{name.replace('-', '_')}.py"), stores[name].port, runs[name]) for name in runs]
    arguments = [str(ran), json.dumps(scripts)]
    if backend == "gloo":
        Gang(folder / "gang", [str(script), *arguments], world).wait()
    else:
        env = {"RANKDECK_BACKEND": backend, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        (run_job if backend == "mpi" else run_ranks)(world, script, *arguments, env=env, seconds=PATIENCE)

    def read(path: Path, missing: str) -> str:
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else missing

    return {
        name: Ran(
            [int(read(ran / f"{name}.{rank}.status", "-1")) for rank in range(world)],
            [read(ran / f"{name}.{rank}.log", "") for rank in range(world)],
            [[] for _ in range(world)],
        )
        for name in runs
    }
