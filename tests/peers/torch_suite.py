"""One rank of torch's own distributed test-suite over the backend mpi. Started by mpirun; the ranks run the same tests in the same order.

    python torch_suite.py RESULTS [NAME_OF_A_TEST_TO_LEAVE_OUT ...]

Writes what became of each test into RESULTS/RANK.json: "ok", "skipped: why", or the traceback.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import unittest
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("WORLD_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed
from torch.testing._internal.common_utils import TestCase

import rankdeck.c10d.mpi  # noqa: F401 - so that torch knows it

SKIPS = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
_exit = sys.exit


def exit_or_skip(code: Any = 0) -> NoReturn:
    """In place of `sys.exit`, by which torch's decorators skip a test that runs in a process of its own."""
    if code in SKIPS:
        raise unittest.SkipTest(SKIPS[code])
    _exit(code)


sys.exit = exit_or_skip


def load_suite(backend: str) -> Any:
    """Torch's tests, which look at the name of the backend while they are imported."""
    os.environ["BACKEND"] = backend
    found = importlib.util.find_spec("torch.testing._internal.distributed.distributed_test")
    assert found is not None
    assert found.origin is not None
    spec = importlib.util.spec_from_file_location(f"distributed_test_of_{backend}", found.origin)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # the tests pickle classes of their module
    spec.loader.exec_module(module)
    # Events of gloo and NCCL end in another thread than they begin, and have shapes; C++ only can record such.
    for name in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(module, name).remove("mpi")
    return module.DistributedTest._DistTestBase


for feature in ("ddp", "subgroup", "gpu", "cuda"):
    common_distributed.DistTestCases.backend_feature[feature].add("mpi")
common_distributed.DistTestCases.skip_collective["allgather_coalesced"].discard("mpi")
sys.exit = exit_or_skip
GLOOS: Any = load_suite("gloo")
OURS: Any = load_suite("mpi")  # the last one: its name stays in $BACKEND, by which some tests skip


class InThisJob(TestCase):
    """Runs in the process group that there is."""

    rank = property(lambda self: dist.get_rank())
    world_size = property(lambda self: dist.get_world_size())

    def setUp(self) -> None:
        super().setUp()  # type: ignore[no-untyped-call]
        self.file_name = str(Path(os.environ["TEMP_DIR"]) / "store")
        dist.barrier()


class Suite(InThisJob, OURS):  # type: ignore[misc]
    """Torch's tests of the backend mpi."""


class GlooSuite(InThisJob, GLOOS):  # type: ignore[misc]
    """Torch's tests of gloo; the group is mpi's nevertheless."""


class Recorder(unittest.TestResult):
    """What became of each test."""

    def __init__(self) -> None:
        super().__init__()
        self.verdicts: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.verdicts[test._testMethodName] = "ok"

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.verdicts[test._testMethodName] = f"skipped: {reason}"

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.verdicts[test._testMethodName] = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]

    addFailure = addError


def main() -> None:
    """Runs the tests, those that are not for the backend mpi as if it were gloo."""
    results, left_out = Path(sys.argv[1]), sys.argv[2:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("mpi", timeout=timedelta(seconds=60))
    recorder = Recorder()
    for name in sorted(set(unittest.TestLoader().getTestCaseNames(Suite)).difference(left_out)):
        Suite(name).run(recorder)  # type: ignore[no-untyped-call]
        if recorder.verdicts[name].startswith("skipped"):
            GlooSuite(name).run(recorder)  # type: ignore[no-untyped-call]
    (results / f"{dist.get_rank()}.json").write_text(json.dumps(recorder.verdicts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
