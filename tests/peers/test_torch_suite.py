"""Torch's own distributed test-suite passes over our backends: `DistributedTest._DistTestBase`, with 2 and with 3 ranks, and `ground.py`.

A test that torch keeps for other backends runs as if this one was gloo or MPI. The tables name every test that does not run, and why; a
test that skips and is not in them fails, so that nothing goes missing unseen when torch changes. gloo is the control. `make suites` runs this,
and `docs/suites.py` shows the counts.
"""

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

LEAST = {2: 100, 3: 120}  # how many tests pass at the least, by the number of ranks


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("library", ["gloo", "openmpi", "mpich", "ucc"])
def test_torchs_own_suite_passes(library: str, ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("expecttest", reason="torch's tests need it: pip install expecttest")
    for name in ("barrier", "test_dir"):
        (tmp_path / name).mkdir()
    left_out = " ".join((*LEFT_OUT.values(), *([NEEDS_THREE_RANKS] if ranks == 2 else []))).split()
    backend = library if library in ("gloo", "ucc") else "mpi"
    script, arguments = Path(__file__).with_name("torch_suite.py"), (backend, str(tmp_path), *left_out)
    env = {"TEMP_DIR": str(tmp_path), "WORLD_SIZE": str(ranks)}
    done: Any
    if backend == "mpi":
        mpirun = need_mpi(library)
        done = run_job(ranks, script, *arguments, seconds=140 * SLOWEST, env=env, mpirun=mpirun)
    else:
        done = run_ranks(ranks, script, *arguments, seconds=140, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    everybody = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    results = ROOT / "build" / "suites"
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{library}-{ranks}.json").write_text(json.dumps(everybody, indent=1))
    for rank, verdicts in enumerate(everybody):
        failed = {name: text for name, text in verdicts.items() if text != "ok" and not text.startswith("skipped: ")}
        assert not failed, f"on rank {rank}: {json.dumps(failed, indent=1)}"
        if library == "gloo":
            continue
        unlisted = {name: text for name, text in verdicts.items() if text != "ok"}.keys() - set(
            " ".join(SKIPPED.values()).split()
        )
        assert not unlisted, f"on rank {rank} these skip, and no table says why: {sorted(unlisted)}"
        assert sum(text == "ok" for text in verdicts.values()) >= LEAST[ranks]
