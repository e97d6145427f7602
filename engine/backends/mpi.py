"""mpi: CPU tensors through MPI, with any torch: `mpirun` starts the ranks, and `rankdeck.c10d.mpi` is the process group."""

import functools
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from engine.backends import gloo
from engine.core.errors import CheckError
from engine.core.plan.mpirun import NAMES, Implementation, Mpi, can_place
from engine.core.plan.plan import BackendSettings, LaunchPlan, ProgramOutput
from engine.gate import Permit, which

SUMMARY = "CPU tensors through MPI's shared memory; needs mpirun and mpi4py"

_OPEN_MPI = "libmpi.so.40"
_MPICH, _DEBIAN_MPICH = "libmpi.so.12", "libmpich.so.12"
_COMMANDS = ("mpirun", "mpiexec")
_DAEMONS = ("orted", "prted", "hydra_pmi_proxy")
_SIGNS: tuple[tuple[Implementation, str], ...] = (
    ("openmpi", r"\(Open ?MPI\) (\S+)|OpenRTE\) (\S+)|prterun \(.*\) (\S+)"),
    ("mpich", r"HYDRA build details:\s+Version:\s+(\S+)"),
)
"""Implementation and version in the output of `mpirun --version`."""

_LIBRARIES: tuple[tuple[Implementation, str], ...] = (
    ("openmpi", r"Open MPI v([\d.]+)"),
    ("mpich", r"MPICH Version:\s*([\d.]+)"),
)
"""Implementation and version as their libraries report them."""

_OTHER_HINT = "check that its module is fully loaded, and that no other mpirun comes first on PATH"

_CUDA = {
    "c_bool(True)": "CUDA-aware (RANKDECK_MPI_CUDA=aware passes it tensors of GPUs)",
    "c_bool(False)": "not CUDA-aware",
}
"""Whether Open MPI takes tensors of GPUs, by the end of the program's output. MPICH is not asked."""

_EXIT_MISSING = 64
PROGRAM = f"""
import ctypes, importlib.util, mmap, os, sys
try:
    import mpi4py
except ImportError:
    torch = importlib.util.find_spec("torch")
    with open(os.path.join(os.path.dirname(torch.origin), "lib", "libtorch_cpu.so"), "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            sys.exit(0 if library.find(b"libmpi.so") >= 0 else {_EXIT_MISSING})
else:
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI
    version = MPI.Get_library_version()
    print(version)
    if "Open MPI" in version:
        try:
            print(ctypes.c_bool.in_dll(ctypes.CDLL("{_OPEN_MPI}"), "opal_built_with_cuda_support"))
        except (OSError, ValueError):
            pass  # it does not say
"""
"""Prints which MPI mpi4py uses, and whether Open MPI was built with CUDA; MPIX_Query_cuda_support says that only after MPI_Init. Exits with `_EXIT_MISSING` if there is neither mpi4py nor a torch that was built with MPI. It does not
import torch."""


def settings(one_machine: bool, permit: Permit) -> BackendSettings:
    """The MPI of this machine. `MPI4PY_MPIABI` makes mpi4py load the library of the same MPI. Raises CheckError: there is none."""
    mpi = find_mpi(permit)
    env = {"RANKDECK_BACKEND": "mpi", "MPI4PY_MPIABI": mpi.implementation}
    after = gloo.settings(one_machine, permit)
    return BackendSettings(
        name="mpi",
        device="cpu",
        env=env | after.env,
        mpi=mpi,
        rejoins_over=after.name,
        found=f"{NAMES[mpi.implementation]} {mpi.version}, {mpi.path}",
        library_path=_library_path(mpi),
        library_links=_library_links(mpi),
        torch="2.4",
    )


def check_plan(plan: LaunchPlan) -> None:
    """Raises CheckError if the MPI can't place ranks as planned."""
    mpi = plan.backend.mpi
    assert mpi is not None
    if not can_place(mpi, [place.node for place in plan.places]):
        hint = 'set layout.order to "block"'
        raise CheckError("MPICH can't place ranks in cyclic order on nodes with different numbers of ranks", hint=hint)


def judge(output: ProgramOutput, plan: LaunchPlan) -> str:
    """Refuses a launch whose ranks would not meet. Returns whether Open MPI takes tensors of GPUs, with the MPI; empty: unknown. Raises CheckError: there
    is no mpi4py, or it loads another library than that of `mpirun`."""
    mpi = plan.backend.mpi
    assert mpi is not None
    if output.status == _EXIT_MISSING:
        hint = f"{plan.python} -m pip install mpi4py"
        raise CheckError(f"{plan.python} has no mpi4py, and its torch was built without MPI", hint=hint)
    found = next(((kind, match[1]) for kind, sign in _LIBRARIES if (match := re.search(sign, output.text))), None)
    if output.status or found is None:  # an unknown library may be compatible
        return ""
    kind, version = found
    same = kind == "mpich" or version.split(".")[0] == mpi.version.split(".")[0]
    if kind != mpi.implementation or not same:
        raise CheckError(
            f"mpi4py uses {NAMES[kind]} {version}, but {mpi.path} is of {NAMES[mpi.implementation]} {mpi.version}: every "
            "rank would be alone",
            hint="put the mpirun of that library first on PATH, or the folder of mpirun's libmpi first on LD_LIBRARY_PATH",
        )
    cuda = _CUDA.get(output.text.strip().rpartition("\n")[2])
    return f"{plan.backend.found}, {cuda}; {plan.backend.rejoin_words}" if cuda else ""


def find_mpi(permit: Permit) -> Mpi:
    """The MPI of the user's PATH, else that of rankdeck's own environment, of `make`, or of the active conda environment. Raises
    CheckError: there is none, it is neither Open MPI nor MPICH, or it may not run."""
    own = os.path.dirname(sys.executable)  # of `rankdeck[mpi]`; on PATH only while the environment is active
    places = [None, own, os.path.join(sys.prefix, "openmpi", "bin")]
    places += [os.path.join(conda, "bin") for conda in [os.environ.get("CONDA_PREFIX")] if conda]
    found = (which(command, path) for path in places for command in _COMMANDS)
    path = next((path for path in found if path), None)
    if path is None:
        raise CheckError(
            "there is no mpirun",
            hint="load your site's MPI module, install Open MPI (package openmpi-bin) or MPICH, or: pip install 'rankdeck[mpi]'",
        )
    said = _version_text(permit.program(path), os.stat(path).st_mtime)
    for implementation, sign in _SIGNS:
        if match := re.search(sign, said):
            version = next(group for group in match.groups() if group)
            if not any(os.path.exists(os.path.join(os.path.dirname(path), daemon)) for daemon in _DAEMONS):
                path = os.path.realpath(path)  # mpirun finds its daemons relative to the path of its command
            return Mpi(implementation=implementation, version=version, path=path, slots=len(os.sched_getaffinity(0)))
    first = said.strip().partition("\n")[0][:80]
    raise CheckError(f"{path} is not a supported MPI: {first!r}", hint="install Open MPI or MPICH")


def _library_path(mpi: Mpi) -> str:
    """The folder with the library of that Open MPI; empty if ranks find it without help."""
    own = Path(mpi.path).resolve().parent.parent / "lib"
    if mpi.implementation != "openmpi" or own == Path("/usr/lib") or not (own / _OPEN_MPI).exists():
        return ""
    return str(own)


def _library_links(mpi: Mpi) -> dict[str, str]:
    """mpi4py's wheels load MPICH as `libmpi.so.12`, which Debian names `libmpich.so.12`: the link that ranks need."""
    if mpi.implementation != "mpich":
        return {}
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders += [Path(mpi.path).resolve().parent.parent / "lib", Path("/usr/lib64"), Path("/usr/lib")]
    folders += [Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or ".")]
    found = next((folder / _DEBIAN_MPICH for folder in folders if (folder / _DEBIAN_MPICH).exists()), None)
    if found is None or any((folder / _MPICH).exists() for folder in folders):
        return {}
    return {_MPICH: str(found)}


@functools.lru_cache(maxsize=4)
def _version_text(path: str, changed: float) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise CheckError(f"{path} --version does not answer", hint=_OTHER_HINT) from None
    except OSError as error:
        raise CheckError(f"{path} can't be started: {error.strerror}", hint=_OTHER_HINT) from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
        said = words[-200:] if words.isprintable() else "its output is not readable"
        raise CheckError(f"{path} --version ended with status {done.returncode}: {said}", hint=_OTHER_HINT)
    return (done.stdout + done.stderr).decode(errors="replace")
