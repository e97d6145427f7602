"""Loads mpi4py and initialises MPI with threads, if it is the MPI that started the ranks."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Mapping

from rankdeck.c10d._mpi.segments import own_folder

_LAUNCHERS = {"OMPI_COMM_WORLD_SIZE": "openmpi", "PMI_SIZE": "mpich"}
"""Where mpirun (Open MPI; MPICH's Hydra and relatives) puts the number of ranks, and mpi4py's name of its library."""

_MPICH, _DEBIANS_MPICH = "libmpi.so.12", "libmpich.so.12"

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
        _rename_mpich()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"mpi4py finds no MPI library ({error}): install Open MPI or MPICH, or name the folder of its libmpi in LD_LIBRARY_PATH"
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


def _rename_mpich() -> None:
    """Lets mpi4py's wheel find Debian's MPICH: it needs a library of the name `libmpi.so.12`, and Debian's is `libmpich.so.12`. So that one
    is loaded for everybody, and beside it an empty library of the wanted name."""
    wanted = os.environ.get("MPI4PY_LIBMPI", "")
    if os.environ.get("MPI4PY_MPIABI", "") != "mpich" and "mpich" not in os.path.basename(wanted):
        return
    for name, mode in ((_MPICH, ctypes.DEFAULT_MODE), (wanted or _DEBIANS_MPICH, ctypes.RTLD_GLOBAL)):
        try:
            ctypes.CDLL(name, mode)
        except OSError:
            continue
        break
    else:
        return  # mpi4py says what is missing
    if name != _MPICH:
        with os.fdopen(os.memfd_create(_MPICH), "wb") as file:
            file.write(_empty_library(_MPICH))
            file.flush()
            ctypes.CDLL(f"/proc/self/fd/{file.fileno()}")


def _empty_library(name: str) -> bytes:
    """Returns the file of a shared library (64-bit ELF, of this machine) that has a name and nothing else."""
    with open("/proc/self/exe", "rb") as file:
        start = file.read(20)  # class, byte order and machine of this process
    names = b"\0" + name.encode() + b"\0"
    names += bytes(-len(names) % 8)
    at_names = 64 + 2 * 56  # behind the header and two program headers
    at_symbols = at_names + len(names)  # one symbol of 24 bytes, which is none
    at_hash = at_symbols + 24
    at_dynamic = at_hash + 24
    tags = ((14, 1), (5, at_names), (10, len(names)), (6, at_symbols), (11, 24), (4, at_hash), (0, 0))
    size = 16 * len(tags)
    end = at_dynamic + size
    header = start[:16] + struct.pack("=H2sIQQQIHHHHHH", 3, start[18:20], 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    load = struct.pack("=IIQQQQQQ", 1, 6, 0, 0, 0, end, end, 1 << 16)
    dynamic = struct.pack("=IIQQQQQQ", 2, 6, at_dynamic, at_dynamic, at_dynamic, size, size, 8)
    rest = bytes(24) + struct.pack("=6I", 1, 1, 0, 0, 0, 0) + b"".join(struct.pack("=qQ", *tag) for tag in tags)
    return header + load + dynamic + names + rest


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
                "every rank would be alone. Let MPI4PY_MPIABI name the kind of mpirun's library (openmpi or mpich) and LD_LIBRARY_PATH "
                "its folder, or start the ranks with the mpirun of that library"
            )
    wanted = environment.get("WORLD_SIZE", "")
    if wanted.isdigit() and int(wanted) != size:
        raise RuntimeError(
            f"WORLD_SIZE says {wanted} ranks, but {library} sees {size}: the backend mpi needs ranks that mpirun has started, "
            f"for instance with: mpirun -np {wanted} python script.py"
        )
