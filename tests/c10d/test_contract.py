"""Random collectives give over our backends what they give over gloo, whatever the dtype, the shape and the layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.c10d.mpirun import need_mpi, run_job
from tests.support import SLOWEST
from tests.ucc.ranks import run_ranks

CASES = 250
SCRIPT = Path(__file__).with_name("contract.py")


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("count_limit", [None, 4], ids=["whole", "in pieces of 4 elements"])
def test_random_collectives_over_mpi_agree_with_gloo(ranks: int, count_limit: int | None, tmp_path: Path) -> None:
    need_mpi()
    seed = 1000 * ranks + (count_limit or 0)
    arguments = [str(tmp_path), str(seed), str(CASES), *([] if count_limit is None else [str(count_limit)])]
    done = run_job(ranks, SCRIPT, "mpi", *arguments, seconds=100 * SLOWEST)
    check_verdicts(tmp_path, ranks)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    ("ranks", "transports"),
    [(1, "self,sm,tcp"), (2, "self,sm,tcp"), (3, "self,sm,tcp"), (4, "self,sm,tcp"), (3, "self,tcp")],
)
def test_random_collectives_over_ucc_agree_with_gloo(ranks: int, transports: str, tmp_path: Path) -> None:
    env = {"UCX_TLS": transports, "UCX_NET_DEVICES": "lo"}
    done = run_ranks(ranks, SCRIPT, "ucc", str(tmp_path), str(2000 * ranks), str(CASES), seconds=100, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    check_verdicts(tmp_path, ranks)


def check_verdicts(folder: Path, ranks: int) -> None:
    """All cases were well on every rank."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    wrong = [verdict for verdict in map(json.loads, lines) if verdict["wrong"]]
    assert not wrong, f"{len(wrong)} are wrong, the first: {wrong[0]['what']}: {wrong[0]['wrong']}"
    assert len(lines) == ranks * CASES
