"""The Python of the programs, and a program beside its twin under torchrun."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.installing import UnavailableError
from tests.programs.environment import make_python
from tests.support import PATIENCE, Deck

SCRIPTS = Path(__file__).with_name("scripts")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python that has the libraries. Skips where they can't be had."""
    try:
        return make_python(tmp_path_factory.mktemp("programs") / "venv")
    except UnavailableError as error:
        pytest.skip(f"needs the libraries of tests/programs: {error}")


class Ran(NamedTuple):
    """A run that has succeeded, as its user sees it."""

    final: str  # what rank 0 printed last about its result
    status: dict[str, Any]
    summary: dict[str, Any]
    curves: dict[str, list[tuple[int | None, float]]]  # of rank 0, by metric: (step, value)

    def steps(self, metric: str) -> set[int]:
        """Where a curve has points."""
        return {step for step, _ in self.curves[metric] if step is not None}


class Programs:
    """Runs programs under rankdeck and torchrun, two ranks each. `rankdeck`: the command. `python`: of the ranks. `work`: the folder that the test
    runs in."""

    def __init__(self, rankdeck: Deck, python: Path, work: Path) -> None:
        self.rankdeck, self.python, self.work = rankdeck, python, work

    def start(self, script: str, *args: str, on_failure: str = "hold") -> str:
        """Launches a program and leaves it alone. Returns the id of the run."""
        settings = (f"launch.python={self.python}", f"launch.on_failure={on_failure}")
        words = [word for setting in settings for word in ("--set", setting)]
        done = self.rankdeck("run", "-n", "2", "--detach", *words, SCRIPTS / script, *args)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ended(self, run: str) -> Ran:
        """Waits until a run has succeeded."""
        status = self.rankdeck.wait_state(run, "succeeded", "failed")
        attempt = status["attempt"]
        assert status["state"] == "succeeded", self.rankdeck.log(run, 0, "err", attempt) or status
        exported = self.rankdeck("export", run, "--to", "jsonl", "-o", "-")
        curves: dict[str, list[tuple[int | None, float]]] = {}
        for point in map(json.loads, exported.stdout.splitlines()):
            if point["rank"] == 0:
                curves.setdefault(point["metric"], []).append((point["step"], point["value"]))
        summary = json.loads((self.rankdeck.folder(run) / "summary.json").read_bytes())
        return Ran(final_of(self.rankdeck.log(run, 0, attempt=attempt).decode()), status, summary, curves)

    def beside_torchrun(self, script: str, *args: str, on_failure: str = "hold", only_here: Sequence[str] = ()) -> Ran:
        """Runs a program to its end under both, each in a folder of its own, and compares what it prints last.

        Args:
            script: its name.
            args: its arguments.
            on_failure: what rankdeck does if a rank fails.
            only_here: further arguments under rankdeck.
        """
        argv = [str(self.python), "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPTS / script), *args]
        (self.work / "twin").mkdir()
        twin = subprocess.Popen(
            argv,
            cwd=self.work / "twin",
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            ran = self.ended(self.start(script, *args, *only_here, on_failure=on_failure))
            out, err = twin.communicate(timeout=PATIENCE)
        finally:
            twin.kill()
            twin.communicate()
        assert twin.returncode == 0, err
        assert ran.final == final_of(out)
        return ran


def final_of(out: str) -> str:
    """The only line that begins with `final`."""
    found = [line for line in out.splitlines() if line.startswith("final ")]
    assert len(found) == 1, out
    return found[0]


@pytest.fixture
def programs(rankdeck: Deck, python: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Runs programs with the whole of torch."""
    monkeypatch.setenv("RANKDECK_TESTS_TORCH", "whole")
    return Programs(rankdeck, python, work)
