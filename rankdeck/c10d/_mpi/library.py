"""Loads mpi4py and initialises MPI with threads, if it is the MPI that started the ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from rankdeck.c10d._mpi.segments import own_folder

_LAUNCHERS = {"OMPI_COMM_WORLD_SIZE": "openmpi", "PMI_SIZE": "mpich"}
"""Where mpirun (Open MPI; MPICH's Hydra and relatives) puts the number of ranks, and mpi4py's name of its library."""

_owns = False


def load() -> None:
    """Prepares `from mpi4py import MPI`: afterwards MPI is initialised, and every thread may call it. Raises RuntimeError: mpi4py or the
    MPI library is missing, supports only one thread, or differs from the library of mpirun."""
    global _owns
    try:
        import mpi4py
    except ImportError as error:
        raise RuntimeError(
            f'the backend mpi needs mpi4py ({error}): install it with "pip install mpi4py" in the environment of {sys.executable}'
        ) from error
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc(initialize=False, finalize=False, thread_level="multiple")
        if not os.environ.keys() & {"MPI4PY_MPIABI", "MPI4PY_LIBMPI"}:
            kind = next((kind for name, kind in _LAUNCHERS.items() if name in os.environ), None)
            if kind:  # mpi4py's wheel would load the first library that it finds
                os.environ["MPI4PY_MPIABI"] = kind
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"mpi4py finds no MPI library ({error}): install Open MPI or MPICH, or let MPI4PY_LIBMPI name its libmpi"
        ) from error
    if MPI.Is_finalized():
        raise RuntimeError("MPI is finalised already, and can't be initialised again in this process")
    if not MPI.Is_initialized():
        with own_folder():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
        _owns = True
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "MPI was initialised without MPI_THREAD_MULTIPLE, which the backend mpi needs: let it initialise MPI itself, or "
            'set mpi4py.rc.thread_level = "multiple" before mpi4py.MPI is imported first'
        )
    check_world(MPI.COMM_WORLD.size, os.environ, MPI.Get_library_version().partition(",")[0].strip())


def is_ours() -> bool:
    """Whether `load` initialised MPI, so that rankdeck finalises it too."""
    return _owns


def check_world(size: int, environment: Mapping[str, str], library: str) -> None:
    """Detects ranks that do not see one another. `environment`: has the number of ranks that the launcher has started. Raises
    RuntimeError: the numbers differ."""
    for name in _LAUNCHERS:
        started = environment.get(name, "")
        if started.isdigit() and int(started) != size:
            raise RuntimeError(
                f"mpi4py uses another MPI library than mpirun: {name} says {started} ranks, but {library} sees {size}, so that "
                "every rank would be alone. Let MPI4PY_LIBMPI name the libmpi that belongs to mpirun (or MPI4PY_MPIABI its "
                "kind: openmpi or mpich), or start the ranks with the mpirun of that library"
            )
    wanted = environment.get("WORLD_SIZE", "")
    if wanted.isdigit() and int(wanted) != size:
        raise RuntimeError(
            f"WORLD_SIZE says {wanted} ranks, but {library} sees {size}: the backend mpi needs ranks that mpirun has started, "
            f"for instance with: mpirun -np {wanted} python script.py"
        )
