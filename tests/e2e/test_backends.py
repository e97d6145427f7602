"""Which backend a launch takes: what can't run is said, with the next step, and another takes over where the profile has one."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import NEEDS_NO_GPU, Deck, check_err, entries, from_table, use_mpi

MEET = entries("e2e/backends", "meet")

NO_GPU = "localhost has no NVIDIA GPU"

pytestmark = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason=NEEDS_NO_GPU)


@pytest.fixture
def write(write_profile) -> Callable[..., Path]:
    """A profile of two ranks that meet."""

    def write(**backend: Any) -> Path:
        path: Path = write_profile(MEET, ranks=2, backend=backend)
        return path

    return write


def test_nccl_without_a_gpu_and_without_fallback_ends_before_the_start(rankdeck: Deck, write):
    done = rankdeck("launch", write(name="nccl"))
    assert (done.returncode, done.stdout) == (3, "")
    assert NO_GPU in done.stderr
    assert 'backend.fallback = ["gloo"]' in done.stderr
    assert rankdeck("ps", "--all").stdout.count("job") == 0


def test_nccl_without_a_gpu_runs_on_gloo_where_the_profile_says_so_and_tells_why(rankdeck: Deck, write):
    profile = write(name="nccl", fallback=["gloo"])
    plan = rankdeck("plan", profile).stdout
    assert re.search(rf"backend +gloo, 2 ranks.*\n +nccl can't run: {NO_GPU}\n", plan)
    done = rankdeck("launch", profile)
    assert done.returncode == 0
    assert done.stdout.count("met gloo 2\n") == 2
    assert f"launched 2 ranks of {sys.executable} on gloo; nccl can't run: {NO_GPU}" in done.stderr


def test_a_group_that_can_not_be_set_up_is_tried_on_the_next_backend_in_a_new_attempt(
    rankdeck: Deck, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("mpi4py")
    use_mpi("openmpi", tmp_path, monkeypatch)
    profile = write(name="gloo", fallback=["mpi"], env={"GLOO_SOCKET_IFNAME": "nope0"})
    done = rankdeck("launch", profile)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("met mpi 2\n") == 2
    assert re.search(r"gloo failed on localhost, rank [01]: .*nope0.*; running on mpi\n", done.stderr)
    run = done.stdout.split("\n")[0]
    status = rankdeck("status", run).stdout.split("\n")[0]
    assert re.search(r"attempt 1 .* mpi$", status)
    assert "restart" not in done.stderr


def test_an_mpirun_that_fails_is_a_reason_for_the_next_backend(rankdeck, write, tmp_path, monkeypatch):
    pytest.importorskip("mpi4py")
    use_mpi("openmpi", tmp_path, monkeypatch)
    real = tmp_path / "bin" / "mpirun"
    real.unlink()
    real.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; exit; fi\n'
        "echo There are not enough slots available in the system >&2\nexit 1\n"
    )
    real.chmod(0o755)
    done = rankdeck("launch", write(name="mpi", fallback=["gloo"]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("met gloo 2\n") == 2
    assert re.search(r"mpi failed on localhost, rank [01]: .*slots.*; running on gloo\n", done.stderr)


def test_mpi_may_be_named_with_its_device(rankdeck: Deck, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mpi4py")
    use_mpi("openmpi", tmp_path, monkeypatch)
    done = rankdeck("launch", write(name="cpu:mpi"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("met cpu:mpi 2\n") == 2


def test_every_backend_is_shown_with_what_is_missing(rankdeck: Deck):
    shown = {one["name"]: one for one in json.loads(rankdeck("backends", "--json").stdout)}
    assert {"gloo", "mpi", "nccl", "auto"} <= set(shown)
    assert (shown["gloo"]["trouble"], shown["nccl"]["trouble"], shown["auto"]["found"]) == ("", NO_GPU, "here: gloo")
    text = rankdeck("backends").stdout
    assert "● gloo" in text
    assert re.search(rf"✖ nccl .*\n +{NO_GPU}\n +choose another backend", text)
    assert rankdeck("--ascii", "backends").stdout.isascii()


def test_a_python_without_mpi4py_is_found_before_the_launch(rankdeck, write, tmp_path, monkeypatch):
    use_mpi("openmpi", tmp_path, monkeypatch)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "mpi4py.py").write_text("raise ImportError('hidden')")
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    done = rankdeck("launch", write(name="mpi"))
    check_err(done, 3, "has no mpi4py, and its torch was built without MPI", "-m pip install mpi4py")


@from_table
def test_a_backend_that_makes_no_sense_is_an_error_with_its_line(backend, reason, rankdeck: Deck, write):
    done = rankdeck("plan", write(**backend))
    check_err(done, 2, reason)
    assert re.search(r"job\.toml:\d+: backend\.(name|fallback)", done.stderr)
