"""The command line of `mpirun`, for each implementation of MPI."""

import shlex
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import msgspec

Implementation = Literal["openmpi", "mpich"]

NAMES: dict[Implementation, str] = {"openmpi": "Open MPI", "mpich": "MPICH"}  # names for users

LAUNCHER = "launcher"
"""Shell script in the working directory of `mpirun`: `sh launcher HOST COMMAND…` runs a command on another node."""

HEAD = "localhost"  # name of mpirun's own node in its arguments


class Mpi(msgspec.Struct, frozen=True, kw_only=True):
    """An MPI installation, its version as `mpirun --version` prints it, and the number of cores of this machine."""

    implementation: Implementation
    version: str
    path: str
    slots: int

    @property
    def has_prrte(self) -> bool:
        """Whether its `mpirun` is PRRTE: Open MPI 5 and newer."""
        return self.implementation == "openmpi" and self.version.split(".")[0] >= "5"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive ranks on one node, by its name from `host_name`, and the argv of each."""

    host: str
    ranks: int
    program: tuple[str, ...]


def host_name(index: int) -> str:
    """The name of a node, by its index in the plan, in the arguments of `mpirun`. It is not a network name: `mpirun` would resolve it,
    mistake it for its own machine, or remove its domain. The agents connect to nodes, not `mpirun`."""
    return f"rankdeck-{index}" if index else HEAD


def mpirun_argv(mpi: Mpi, parts: Sequence[Part], address: str = "") -> list[str]:
    """The command that starts the program of each part once for each of its ranks. More ranks than cores are allowed. On one machine Open
    MPI then makes waiting ranks yield, so it must know the real number of cores. Ranks are not bound to cores, as with all backends.
    `address`: at which other nodes reach mpirun's node."""
    match mpi.implementation:
        case "openmpi":
            return _openmpi_argv(mpi, parts)
        case "mpich":
            return _mpich_argv(mpi, parts, address)


def _openmpi_argv(mpi: Mpi, parts: Sequence[Part]) -> list[str]:
    argv = [mpi.path]
    if _is_spread(parts):
        # Whatever batch system is around: its own way to other nodes may not be the agents'. The daemons must stay
        # children of those who start them, and all be started from here.
        option, component, remote = ("--prtemca", "plm_ssh", "ssh") if mpi.has_prrte else ("--mca", "plm_rsh", "rsh")
        others = len({part.host for part in parts} - {HEAD})
        argv += [option, "plm", remote, option, f"{component}_agent", f"sh {LAUNCHER}"]
        argv += [option, f"{component}_no_tree_spawn", "1", option, f"{component}_num_concurrent", str(others)]
        argv += ["--leave-session-attached"]
    argv += ["--map-by", ":OVERSUBSCRIBE"] if mpi.has_prrte else ["--oversubscribe"]
    argv += ["--bind-to", "none"]
    for index, part in enumerate(parts):
        slots = part.ranks if _is_spread(parts) else mpi.slots
        argv += [":"] if index else []
        argv += ["-np", str(part.ranks), "--host", f"{part.host}:{slots}", "--wdir", "/", *part.program]
    return argv


def _mpich_argv(mpi: Mpi, parts: Sequence[Part], address: str) -> list[str]:
    argv = [mpi.path]
    if _is_spread(parts):
        argv += ["-localhost", address, "-launcher", "rsh", "-launcher-exec", "/bin/sh", "-genvnone"]
        hosts = _turn([(part.host, part.ranks) for part in parts])
        argv += ["-hosts", ",".join(f"{host}:{ranks}" for host, ranks in hosts)]
    else:
        argv += ["-hosts", HEAD, "-launcher", "fork"]
    for index, part in enumerate(parts):
        argv += [":"] if index else []
        argv += ["-n", str(part.ranks), "-wdir", "/", *part.program]
    return argv


def can_place(mpi: Mpi, nodes: Sequence[str]) -> bool:
    """Whether an MPI supports this placement, which gives the node of each rank. MPICH fills its hosts in order and then starts again
    with the first."""
    hosts = _turn([(node, len(list(ranks))) for node, ranks in groupby(nodes)])
    return mpi.implementation != "mpich" or len({node for node, _ in hosts}) == len(hosts)


def _turn(hosts: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The shortest prefix of which the list is a repetition."""
    for length in range(1, len(hosts)):
        turns, rest = divmod(len(hosts), length)
        if not rest and hosts == hosts[:length] * turns:
            return hosts[:length]
    return hosts


def _is_spread(parts: Sequence[Part]) -> bool:
    return any(part.host != HEAD for part in parts)


def mpirun_environment(mpi: Mpi, uid: int, *, spread: bool) -> dict[str, str]:
    """Environment variables of `mpirun` and its daemons. `uid`: the user's; Open MPI refuses root unless two variables allow it.
    `spread`: whether there are other nodes."""
    if mpi.implementation == "mpich":
        return {"HYDRA_LAUNCHER_EXTRA_ARGS": LAUNCHER} if spread else {}
    if uid == 0:
        names = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
        names += ["PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"]
        return dict.fromkeys(names, "1")
    return {}


def launcher_script(argv: Sequence[str]) -> str:
    """The content of `LAUNCHER`: runs a command on another node by `argv`, to which host and command are appended."""
    return f'exec {shlex.join(argv)} "$@"\n'


def interface_environment(mpi: Mpi, interface: str) -> dict[str, str]:
    """The variable that selects the interface for TCP, if it is known; MPI finds faster networks itself."""
    if not interface:
        return {}
    return {"OMPI_MCA_btl_tcp_if_include" if mpi.implementation == "openmpi" else "FI_TCP_IFACE": interface}
