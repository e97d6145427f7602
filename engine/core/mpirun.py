"""The command line of `mpirun`, for each implementation of MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Implementation = Literal["openmpi", "mpich"]


class Mpi(msgspec.Struct, frozen=True, kw_only=True):
    """An MPI that was found.

    Args:
        implementation: which.
        version: as it says itself.
        path: of its `mpirun`.
        slots: processes that the machine has cores for.
    """

    implementation: Implementation
    version: str
    path: str
    slots: int


def mpirun_argv(mpi: Mpi, ranks: int, program: Sequence[str]) -> list[str]:
    """The command that starts a program once for each rank, on this machine.

    More ranks than cores are allowed: Open MPI then lets waiting ranks yield, which is why it must know the true number of
    cores. Ranks are not bound to cores, as they aren't anywhere else in rankdeck.

    Args:
        mpi: which MPI.
        ranks: how many.
        program: argv of each.
    """
    match mpi.implementation:
        case "openmpi":
            many = ["--map-by", ":OVERSUBSCRIBE"] if mpi.version.split(".")[0] >= "5" else ["--oversubscribe"]
            return [
                mpi.path,
                "-np",
                str(ranks),
                "--host",
                f"localhost:{mpi.slots}",
                *many,
                "--bind-to",
                "none",
                *program,
            ]
        case "mpich":
            return [mpi.path, "-n", str(ranks), "-hosts", "localhost", "-launcher", "fork", *program]


def mpirun_environment(mpi: Mpi, uid: int) -> dict[str, str]:
    """What `mpirun` itself needs in its environment.

    Args:
        mpi: which MPI.
        uid: of the user: Open MPI refuses root unless told twice.
    """
    if mpi.implementation == "openmpi" and uid == 0:
        names = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
        names += ["PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"]
        return dict.fromkeys(names, "1")
    return {}
