"""mpi: CPU tensors through MPI, on a stock torch: `mpirun` starts the ranks and `rankdeck.c10d.mpi` is the process group."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from engine.core.errors import CheckError
from engine.core.mpirun import Implementation, Mpi
from engine.core.plan import BackendSettings, NodeFacts
from engine.paths import home, private_folder

SUMMARY = "CPU tensors through MPI's shared memory; needs mpirun and mpi4py"

_OPEN_MPI = "libmpi.so.40"
_WANTED, _DEBIANS = "libmpi.so.12", "libmpich.so.12"
_COMMANDS = ("mpirun", "mpiexec")
_DAEMONS = ("orted", "prted", "hydra_pmi_proxy")
_SIGNS: tuple[tuple[Implementation, str], ...] = (
    ("openmpi", r"\(Open ?MPI\) (\S+)|OpenRTE\) (\S+)|prterun \(.*\) (\S+)"),
    ("mpich", r"HYDRA build details:\s+Version:\s+(\S+)"),
)
"""How each tells itself and its version in the answer to `--version`."""

_LIBRARIES: tuple[tuple[Implementation, str], ...] = (
    ("openmpi", r"Open MPI v([\d.]+)"),
    ("mpich", r"MPICH Version:\s*([\d.]+)"),
)
"""How their libraries tell it."""

_NAMES: dict[Implementation, str] = {"openmpi": "Open MPI", "mpich": "MPICH"}

_ASK_LIBRARY = (
    "import mpi4py; mpi4py.rc.initialize = mpi4py.rc.finalize = False; from mpi4py import MPI; "
    "print(MPI.Get_library_version())"
)


def settings(*, one_machine: bool) -> BackendSettings:
    """The MPI of this machine. Its name tells mpi4py which of the libraries that it can use belongs to that `mpirun`.

    Raises:
        CheckError: there is none.
    """
    mpi = find_mpi()
    env = {"RANKDECK_BACKEND": "mpi", "MPI4PY_MPIABI": mpi.implementation, **_library_path(mpi)}
    return BackendSettings(name="mpi", device="cpu", env=env, mpi=mpi)


def check_library(python: str, mpi: Mpi, env: Mapping[str, str]) -> None:
    """Finds out before the launch that mpi4py loads another MPI than that of `mpirun`: every rank would be alone.

    Args:
        python: of the ranks, on this machine.
        mpi: whose `mpirun` starts them.
        env: of the ranks.

    Raises:
        CheckError: it does. That there is no mpi4py is for a rank to say: its torch may have an MPI of its own.
    """
    try:
        done = subprocess.run(
            [python, "-c", _ASK_LIBRARY],
            capture_output=True,
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **env},
        )
    except (OSError, subprocess.SubprocessError):
        return
    said = done.stdout.decode(errors="replace").strip()
    if done.returncode or not said:
        return
    found = next(((kind, match[1]) for kind, sign in _LIBRARIES if (match := re.search(sign, said))), None)
    if found is not None and (found[0], found[1].split(".")[0]) == (mpi.implementation, mpi.version.split(".")[0]):
        return
    raise CheckError(
        f"mpi4py uses {said.partition(chr(10))[0][:60]}, but {mpi.path} is {_NAMES[mpi.implementation]} {mpi.version}: every rank "
        "would be alone",
        hint="put the mpirun of that library first on PATH, or the folder of mpirun's libmpi on LD_LIBRARY_PATH",
    )


def check(ranks: int, facts: NodeFacts) -> None:
    """Any number of ranks can run: they share cores where there are too few."""


def find_mpi() -> Mpi:
    """The MPI that the user's PATH leads to.

    Raises:
        CheckError: there is none, or one that is not known here.
    """
    own = os.path.dirname(
        sys.executable
    )  # where `rankdeck[mpi]` puts one, which is not on PATH unless the environment is active
    found = (shutil.which(command, path=path) for path in (None, own) for command in _COMMANDS)
    path = next((path for path in found if path), None)
    if path is None:
        raise CheckError(
            "there is no mpirun",
            hint="load your site's MPI module, install Open MPI (package openmpi-bin) or MPICH, or: pip install 'rankdeck[mpi]'",
        )
    said = _version_text(path, os.stat(path).st_mtime)
    for implementation, sign in _SIGNS:
        if match := re.search(sign, said):
            version = next(group for group in match.groups() if group)
            if not any(os.path.exists(os.path.join(os.path.dirname(path), daemon)) for daemon in _DAEMONS):
                path = os.path.realpath(path)  # each looks for its parts beside the name that it is called by
            return Mpi(implementation=implementation, version=version, path=path, slots=len(os.sched_getaffinity(0)))
    first = said.strip().partition("\n")[0][:80]
    raise CheckError(f"{path} is no MPI that is known here: {first!r}", hint="Open MPI and MPICH are")


def _library_path(mpi: Mpi) -> dict[str, str]:
    """Where ranks find the library of that `mpirun`, unless they find it by themselves.

    mpi4py's wheels ask for MPICH as `libmpi.so.12`, and Debian and its kin call it `libmpich.so.12`: a link of that name helps.
    """
    set_by_user = os.environ.get("LD_LIBRARY_PATH", "")
    folders = [Path(folder) for folder in set_by_user.split(":") if folder]
    if mpi.implementation == "openmpi":
        own = Path(mpi.path).resolve().parent.parent / "lib"
        is_known = own in folders or own == Path("/usr/lib") or not (own / _OPEN_MPI).exists()
        return {} if is_known else {"LD_LIBRARY_PATH": f"{own}:{set_by_user}".rstrip(":")}
    folders += [Path(mpi.path).resolve().parent.parent / "lib", Path("/usr/lib64"), Path("/usr/lib")]
    folders += [Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or ".")]
    found = next((folder / _DEBIANS for folder in folders if (folder / _DEBIANS).exists()), None)
    if found is None or any((folder / _WANTED).exists() for folder in folders):
        return {}
    links = private_folder(home() / "mpich")
    link = links / _WANTED
    if not link.exists():
        link.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(found)
    return {"LD_LIBRARY_PATH": str(links)}


@functools.lru_cache(maxsize=4)
def _version_text(path: str, changed: float) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CheckError(f"{path} can't be asked for its version: {error}") from None
    return (done.stdout + done.stderr).decode(errors="replace")
