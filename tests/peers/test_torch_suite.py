"""Torch's own distributed test-suite passes over our backends: `DistributedTest._DistTestBase`, with 2 and with 3 ranks.

A test that torch keeps for other backends runs as if this one was gloo or MPI. The tables name every test that does not run, and why; a
test that skips and is not in them fails, so that nothing goes missing unseen when torch changes.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.c10d.mpirun import need_mpi, run_job
from tests.support import ROOT, SLOWEST
from tests.ucc.ranks import run_ranks

LISTS = tomllib.loads((ROOT / "tests" / "data" / "torch_suite.toml").read_text(encoding="utf-8"))
LEFT_OUT, NEEDS_THREE_RANKS, SKIPPED = LISTS["left_out"], LISTS["needs_three_ranks"], LISTS["skipped"]
"""Tests that are not started, tests whose group is ranks 1 and 2, and tests that skip themselves."""

LEAST = {2: 90, 3: 110}  # how many tests pass at the least, by the number of ranks


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("backend", ["mpi", "ucc"])
def test_torchs_own_suite_passes(backend: str, ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("expecttest", reason="torch's tests need it: pip install expecttest")
    for name in ("barrier", "test_dir"):
        (tmp_path / name).mkdir()
    left_out = " ".join((*LEFT_OUT.values(), *([NEEDS_THREE_RANKS] if ranks == 2 else []))).split()
    script, arguments = Path(__file__).with_name("torch_suite.py"), (backend, str(tmp_path), *left_out)
    env = {"TEMP_DIR": str(tmp_path), "WORLD_SIZE": str(ranks)}
    done: Any
    if backend == "mpi":
        need_mpi()
        done = run_job(ranks, script, *arguments, seconds=140 * SLOWEST, env=env)
    else:
        done = run_ranks(ranks, script, *arguments, seconds=140, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    everybody = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    for rank, verdicts in enumerate(everybody):
        failed = {name: text for name, text in verdicts.items() if text != "ok" and not text.startswith("skipped: ")}
        assert not failed, f"on rank {rank}: {json.dumps(failed, indent=1)}"
        unlisted = {name: text for name, text in verdicts.items() if text != "ok"}.keys() - set(
            " ".join(SKIPPED.values()).split()
        )
        assert not unlisted, f"on rank {rank} these skip, and no table says why: {sorted(unlisted)}"
        assert sum(text == "ok" for text in verdicts.values()) >= LEAST[ranks]
