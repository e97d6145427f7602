"""Decisions of the backend mpi that need no ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.backends import mpi
from engine.core.plan.plan import ProgramOutput
from engine.gate import LAUNCHED
from rankdeck.c10d import _tensors
from rankdeck.c10d._mpi.library import check_world
from tests.c10d.mpirun import need_mpi
from tests.support import ROOT, use_mpi


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> object:
    """`_mpi.tensors`, in a process that is no rank."""
    need_mpi()
    monkeypatch.setenv("MPI4PY_MPIABI", "openmpi")  # whose mpirun `need_mpi` has found
    import mpi4py

    mpi4py.rc(initialize=False, finalize=False)
    from rankdeck.c10d._mpi import tensors as mpi_tensors

    return mpi_tensors


@pytest.mark.parametrize("environment", [{}, {"OMPI_COMM_WORLD_SIZE": "2"}, {"PMI_SIZE": "2", "WORLD_SIZE": "2"}])
def test_a_launcher_that_agrees_with_mpi_is_accepted(environment: dict[str, str]) -> None:
    check_world(2, environment, "Open MPI v4.1.4")


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_ranks_that_another_mpi_has_started_would_be_alone(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"every rank would be alone\. Let MPI4PY_MPIABI name") as caught:
        check_world(1, {name: "4", "WORLD_SIZE": "4"}, "MPICH Version: 4.0.2")
    assert f"{name} says 4 ranks, but MPICH Version: 4.0.2 sees 1" in str(caught.value)


def test_ranks_that_mpirun_has_not_started_are_told_so() -> None:
    with pytest.raises(RuntimeError, match=r"mpirun -np 8 python script\.py"):
        check_world(1, {"WORLD_SIZE": "8"}, "Open MPI v4.1.4")


@pytest.mark.parametrize("wanted", ["", "mpi4py"])
def test_importing_the_backend_loads_no_mpi(wanted: str) -> None:
    code = (
        "import sys, torch.distributed as dist, rankdeck.c10d.mpi as mpi; mpi.register(); "
        "print('mpi4py' in sys.modules, dist.is_mpi_available(), dist.is_backend_available('rankdeck_mpi'), "
        "dist.get_default_backend_for_device('cpu'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env={"RANKDECK_MPI": wanted}
    )
    assert done.stdout.split() == ["False", "True", "True", "gloo"]


@pytest.mark.parametrize(("library", "said"), [("openmpi", "the MPI, not CUDA-aware; over gloo"), ("mpich", "")])
def test_a_check_says_whether_open_mpi_takes_tensors_of_gpus(
    library: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_mpi(library)
    use_mpi(library, tmp_path, monkeypatch)
    monkeypatch.setenv("MPI4PY_MPIABI", library)
    done = subprocess.run([sys.executable, "-c", mpi.PROGRAM], capture_output=True, text=True, check=False)
    backend = SimpleNamespace(mpi=mpi.find_mpi(LAUNCHED), found="the MPI", rejoin_words="over gloo")
    plan: Any = SimpleNamespace(backend=backend)
    assert mpi.judge(ProgramOutput(text=done.stdout, status=done.returncode), plan) == said


def test_an_open_mpi_without_cuda_gets_no_tensors_of_gpus(tensors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKDECK_MPI_CUDA", "aware")
    with pytest.raises(RuntimeError, match="has no CUDA"):
        tensors.takes_cuda()


class OnGpu:
    """A tensor on a GPU, as far as the decision where MPI may find it needs one."""

    layout, device = torch.strided, torch.device("cuda", 0)
    is_cpu, is_cuda = False, True

    def is_contiguous(self) -> bool:
        return True

    def is_conj(self) -> bool:
        return False

    def is_neg(self) -> bool:
        return False


@pytest.mark.parametrize(("variable", "direct"), [(None, False), ("staged", False), ("aware", True)])
def test_a_gpus_memory_is_handed_to_mpi_only_if_it_is_said_to_know_what_to_do(
    tensors: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, variable: str | None, direct: bool
) -> None:
    if variable:
        monkeypatch.setenv("RANKDECK_MPI_CUDA", variable)
    else:
        monkeypatch.delenv("RANKDECK_MPI_CUDA", raising=False)
    built_with_cuda = SimpleNamespace(MPIX_Query_cuda_support=lambda: 1)
    monkeypatch.setattr(tensors.ctypes, "CDLL", lambda name: built_with_cuda)
    assert tensors.takes_cuda() is direct
    assert _tensors._is_direct(OnGpu(), tensors.takes_cuda()) is direct  # type: ignore[arg-type]


def test_what_is_not_contiguous_goes_through_a_copy_and_comes_back() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).t()
    staged = _tensors.readable(tensor)
    assert staged.host.is_contiguous()
    assert staged.host.data_ptr() != tensor.data_ptr()
    with torch.inference_mode():
        staged.host.add_(1)
    staged.give_back()
    assert torch.equal(tensor, torch.arange(6.0).reshape(2, 3).t() + 1)
    conjugate = torch.tensor([1 + 2j]).conj()
    assert torch.view_as_real(_tensors.readable(conjugate).host.clone()).tolist() == [[1.0, -2.0]]


def test_a_contiguous_tensor_is_used_as_it_is() -> None:
    tensor = torch.ones(3, requires_grad=True)
    assert _tensors.readable(tensor).host is tensor
    assert _tensors.writable(tensor).host is tensor


def test_counts_beyond_the_limit_are_cut_into_pieces(tensors: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.arange(10).reshape(2, 5)
    assert [piece.tolist() for piece in tensors.pieces(tensor, 6)] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    monkeypatch.setattr(tensors, "COUNT_LIMIT", 4)
    assert [len(piece) for piece in tensors.pieces(tensor, 6)] == [4, 4, 2]
