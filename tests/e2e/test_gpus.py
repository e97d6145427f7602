"""How busy and how full the ranks' GPUs are: from a node's NVML to `status`, and nowhere into the run's files."""

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from engine.backends import BACKENDS
from engine.client.engine import LocalEngine
from engine.core.plan.plan import BackendSettings
from engine.core.sweeps.queue import needs_of
from engine.planning.profiles import read_profile
from engine.runs.paths import RunPaths, runs_folder
from engine.runs.record import read_plan
from tests.fake_nvml import GIB, FakeNvml, gpu
from tests.support import PATIENCE, Deck, kill_hard, wait_gone

WAIT = "import os, signal, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
FULL = {"utilisation": 97, "memory": 61 * GIB, "memory_total": 80 * GIB}
IDLE = {"utilisation": 0, "memory": GIB, "memory_total": 80 * GIB}


def uses(status: dict[str, Any]) -> list[Any]:
    return [rank["gpu"] for rank in status["ranks"]]


@pytest.fixture
def launch(rankdeck: Deck, nvml: FakeNvml, write_profile, monkeypatch) -> Callable[[], str]:
    """Launches two ranks of a backend that computes on GPUs, and has nothing to do with them."""
    nvml.show(gpu(0), gpu(1, utilisation=0, used=GIB))
    for name, value in nvml.environment.items():
        monkeypatch.setenv(name, value)
    settings = BackendSettings(name="gloo", env={}, device="cuda")
    monkeypatch.setitem(BACKENDS, "gloo", BACKENDS["gloo"]._replace(settings=lambda *_: settings))
    profile = read_profile(write_profile(WAIT, ranks=2))
    return lambda: asyncio.run(LocalEngine().launch(profile))


def test_status_tells_how_ranks_use_their_gpus_while_they_run(rankdeck: Deck, nvml: FakeNvml, launch, work):
    run = launch()
    rankdeck.wait_status(run, lambda status: uses(status) == [FULL, IDLE])
    shown = rankdeck("status", run).stdout.splitlines()
    heading = next(number for number, line in enumerate(shown) if line.split()[-2:] == ["GPU", "MEMORY"])
    assert shown[heading + 1].endswith("97%  61 GiB")
    nvml.show(gpu(0, utilisation=2_000_000_000), gpu(1, model="lost"))
    rankdeck.wait_status(run, lambda status: uses(status) == [{**FULL, "utilisation": None}, None])
    nvml.show(gpu(0), gpu(1, model="lost"))
    rankdeck.wait_status(run, lambda status: uses(status) == [FULL, None])
    nvml.show(gpu(0), gpu(1))
    rankdeck.wait_status(run, lambda status: uses(status) == [FULL, FULL])
    (work / "go").touch()
    assert uses(rankdeck.wait_state(run, "succeeded")) == [None, None]
    assert "GPU" not in rankdeck("status", run).stdout
    kept = {path.name for path in rankdeck.folder(run).rglob("*.json*") if b"utilisation" in path.read_bytes()}
    assert kept <= {"series.json"}, "it is a curve, and no result"


def test_the_plan_keeps_the_gpus_that_the_shell_has_chosen_for_whoever_looks_for_free_ones(launch, work, monkeypatch):
    (work / "go").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert needs_of(read_plan(RunPaths(runs_folder() / launch()))).gpus == ("1", "0")


def test_whoever_takes_the_place_of_a_dead_process_and_a_new_attempt_know_it_too(rankdeck, nvml, launch, work):
    run = launch()
    rankdeck.wait_status(run, lambda status: uses(status) == [FULL, IDLE])
    for victim, load in ((rankdeck.supervisor, 50), (rankdeck.agent, 40)):
        kill_hard(pid := victim(run))
        wait_gone(pid)
        nvml.show(gpu(0, utilisation=load), gpu(1))
        wanted = [{**FULL, "utilisation": load}, FULL]
        rankdeck.wait_status(run, lambda status, wanted=wanted: uses(status) == wanted)
    rankdeck("restart", run, "--all")
    rankdeck.wait_status(run, lambda status: status["attempt"] == 1 and uses(status) == wanted)
    (work / "go").touch()
    rankdeck.wait_state(run, "succeeded")


def test_a_run_on_cpus_asks_no_driver(rankdeck: Deck, nvml: FakeNvml, write_profile, monkeypatch):
    nvml.show(gpu(0))
    for name, value in nvml.environment.items():
        monkeypatch.setenv(name, value)
    run = rankdeck.launch(write_profile("print('up', flush=True)\n" + WAIT))
    rankdeck.wait_log(run, 0, b"up")
    assert uses(rankdeck.status(run)) == [None]
    assert not [process for process in rankdeck.processes() if "gpus.py" in process.command]


# --- on real ones


@pytest.mark.slow
def test_the_gpus_of_a_training_are_busy_and_as_large_as_nvidia_smi_says(rankdeck: Deck, real_gpus: int, write_profile):
    profile = write_profile({"name": "gpt", "args": ["--steps", "100000"]}, ranks=real_gpus, backend={"name": "nccl"})
    run = rankdeck.launch(profile)
    found: dict[int, dict[str, int]] = {}

    def all_were_busy(status: dict[str, Any]) -> bool:
        found.update({rank: use for rank, use in enumerate(uses(status)) if use and use["utilisation"]})
        return len(found) == real_gpus

    rankdeck.wait_status(run, all_were_busy)
    smi = shutil.which("nvidia-smi")
    if smi is not None:
        argv = [smi, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        totals = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout.split()
        assert {use["memory_total"] >> 20 for use in found.values()} <= {int(total) for total in totals}
    assert all(0 < use["memory"] <= use["memory_total"] for use in found.values())
    rankdeck("stop", run, "--now")
    rankdeck.wait_state(run, "stopped")
