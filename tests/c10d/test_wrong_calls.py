"""Wrong calls end in an error that says whose fault it was: never in wrong data, a signal or a hang."""

import json
import re
from pathlib import Path

import pytest

from tests.c10d.mpirun import need_mpi, run_job
from tests.c10d.wrong_calls import ALIVE, TORCHS, Wrong, wrong_calls
from tests.support import SLOWEST
from tests.ucc.ranks import run_ranks

SCRIPT = Path(__file__).with_name("wrong_calls.py")


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("library", ["openmpi", "mpich", "ucc"])
def test_each_wrong_call_is_an_error_that_names_the_operation_or_the_rank(library: str, ranks: int, tmp_path: Path):
    if library == "ucc":
        done = run_ranks(ranks, SCRIPT, "ucc", str(tmp_path), seconds=100)
    else:
        mpirun = need_mpi(library)
        done = run_job(ranks, SCRIPT, "mpi", str(tmp_path), seconds=100 * SLOWEST, mpirun=mpirun)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)] if done else []
    calls = list(wrong_calls(ranks))
    assert len(calls) > 250
    assert [one[ALIVE] for one in found] == [str(float(ranks))] * ranks
    unlike = [
        f"rank {rank}: {wrong.name}: {said[wrong.name]}"
        for wrong in calls
        for rank, said in enumerate(found)
        if not is_right(wrong, said[wrong.name], is_last=rank == ranks - 1)
    ]
    assert not unlike, "\n".join(unlike)


def is_right(wrong: Wrong, said: str, *, is_last: bool) -> bool:
    """Whether this is what a rank should say."""
    if wrong.kind == "argument" and re.search(TORCHS, said):
        return True
    if wrong.kind == "absent" and is_last:
        return said == ""
    if (wrong.kind == "message" and not is_last) or (is_last and "shutdown() if last" in wrong.call):
        return said == "no error"
    starts = rf"(Type|Value)Error: {wrong.what}" if wrong.kind == "argument" else "DistBackendError: |RuntimeError: "
    return bool(re.match(starts, said) and re.search(wrong.says, said, re.DOTALL))
