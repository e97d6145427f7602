"""The command lines of Open MPI and MPICH, and how one tells which is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.backends import mpi
from engine.core.errors import CheckError
from engine.core.events import RunLaunched
from engine.core.machine import launch, why_no_rejoin
from engine.core.mpirun import Mpi, mpirun_argv, mpirun_environment

PROGRAM = ["/py", "-I", "proxy.py", "/a folder; rm -rf x", "0"]


def found(implementation: str, version: str = "4.1.4") -> Mpi:
    return Mpi(implementation=implementation, version=version, path="/opt/bin/mpirun", slots=4)  # type: ignore[arg-type]


def test_each_implementation_is_asked_in_its_own_words() -> None:
    assert mpirun_argv(found("openmpi"), 8, PROGRAM) == [
        *("/opt/bin/mpirun", "-np", "8", "--host", "localhost:4", "--oversubscribe", "--bind-to", "none"),
        *PROGRAM,
    ]
    assert "--map-by" in mpirun_argv(found("openmpi", "5.0.8"), 8, PROGRAM)
    assert mpirun_argv(found("mpich"), 2, PROGRAM) == [
        *("/opt/bin/mpirun", "-n", "2", "-hosts", "localhost", "-launcher", "fork"),
        *PROGRAM,
    ]


def test_root_says_so_twice_and_nobody_else_does() -> None:
    assert set(mpirun_environment(found("openmpi"), 0)) >= {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert mpirun_environment(found("openmpi"), 1000) == {}
    assert mpirun_environment(found("mpich"), 0) == {}


@pytest.mark.parametrize(
    ("said", "implementation", "version"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n", "openmpi", "4.1.4"),
        ("mpirun (Open MPI) 5.0.8\n\nReport bugs to https://www.open-mpi.org/community/help/\n", "openmpi", "5.0.8"),
        ("HYDRA build details:\n    Version:                                 4.0.2\n", "mpich", "4.0.2"),
    ],
)
def test_an_mpirun_tells_which_it_is(
    said: str, implementation: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mpirun(tmp_path, f"cat <<'END'\n{said}END\n", monkeypatch)
    seen = mpi.find_mpi()
    assert (seen.implementation, seen.version) == (implementation, version)
    assert seen.slots == len(os.sched_getaffinity(0))


def test_an_mpirun_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mpirun(tmp_path, "echo run what?\n", monkeypatch)
    with pytest.raises(CheckError, match="no MPI that is known here: 'run what\\?'"):
        mpi.find_mpi()


def test_without_one_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CheckError, match="there is no mpirun") as error:
        mpi.settings(one_machine=True)
    assert "openmpi-bin" in (error.value.hint or "")


def test_ranks_of_one_mpirun_start_together() -> None:
    event = RunLaunched(
        at=0.0,
        run="r",
        name="n",
        nodes=(("a", (0, 1)),),
        on_failure="hold",
        max_restarts=3,
        one_fate="one mpirun is one fate",
    )
    state, _ = launch(event)
    assert why_no_rejoin(state) == "no rank has failed"
    assert state.one_fate == "one mpirun is one fate"


def write_mpirun(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a script of that name in front of the PATH."""
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
