"""One rank of torch's own distributed test-suite over a backend of ours. The ranks run the same tests in the same order.

    python torch_suite.py BACKEND RESULTS [NAME_OF_A_TEST_TO_LEAVE_OUT ...]

Writes what became of each test into RESULTS/RANK.json: "ok", "skipped: why", or the traceback.
"""

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

import rankdeck.c10d.mpi
import rankdeck.c10d.ucc  # noqa: F401 - so that torch knows them
from tests.peers.ground import Ground

BACKEND = sys.argv[1]

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
    # torch's own assertions about events of the profiler.
    for name in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(module, name).append(BACKEND)
    return module.DistributedTest._DistTestBase


for feature in ("ddp", "subgroup", "gpu", "cuda"):
    common_distributed.DistTestCases.backend_feature[feature].add(BACKEND)
for backends in common_distributed.DistTestCases.skip_collective.values():
    backends.discard(BACKEND)
sys.exit = exit_or_skip
GLOOS: Any = load_suite("gloo")
MPIS: Any = load_suite("mpi")
OURS: Any = load_suite(BACKEND) if BACKEND != "mpi" else MPIS
IS_CONTROL = BACKEND == "gloo"  # which runs only the tests that torch has for it
os.environ["BACKEND"] = "gloo" if IS_CONTROL else "mpi"
"""By which some tests skip themselves while they run; those of MPI are done with three ranks."""


class InThisJob(TestCase):
    """Runs in the process group that there is."""

    rank = property(lambda self: dist.get_rank())
    world_size = property(lambda self: dist.get_world_size())

    def setUp(self) -> None:
        super().setUp()  # type: ignore[no-untyped-call]
        self.file_name = str(Path(os.environ["TEMP_DIR"]) / "store")
        dist.barrier()


class Suite(InThisJob, OURS):  # type: ignore[misc]
    """Torch's tests of the backend."""


class GlooSuite(InThisJob, GLOOS):  # type: ignore[misc]
    """Torch's tests of gloo; the group is ours nevertheless."""


class MpiSuite(InThisJob, MPIS):  # type: ignore[misc]
    """Torch's tests of MPI, which has collectives that gloo has not."""


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
    """Runs the tests, those that are not for the backend as if it were gloo or MPI."""
    results, left_out = Path(sys.argv[2]), sys.argv[3:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=300))
    recorder = Recorder()
    for name in sorted(set(unittest.TestLoader().getTestCaseNames(Suite)).difference(left_out)):
        Suite(name).run(recorder)  # type: ignore[no-untyped-call]
        for other in () if IS_CONTROL else (GlooSuite, MpiSuite):
            if recorder.verdicts[name].startswith("skipped"):
                other(name).run(recorder)  # type: ignore[no-untyped-call]
    for name in unittest.TestLoader().getTestCaseNames(Ground):
        Ground(name).run(recorder)
    (results / f"{dist.get_rank()}.json").write_text(json.dumps(recorder.verdicts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
