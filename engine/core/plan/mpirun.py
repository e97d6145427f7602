"""The command line of `mpirun`, for each implementation of MPI."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import msgspec

Implementation = Literal["openmpi", "mpich"]

NAMES: dict[Implementation, str] = {"openmpi": "Open MPI", "mpich": "MPICH"}
"""What people call them."""

LAUNCHER = "launcher"
"""Shell script in the folder that `mpirun` starts in: `sh launcher HOST COMMAND…` runs a command on another node."""

HEAD = "localhost"
"""What the node is called to `mpirun` that it runs on."""


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

    @property
    def has_prrte(self) -> bool:
        """Whether its `mpirun` is PRRTE, as Open MPI's is from 5 on."""
        return self.implementation == "openmpi" and self.version.split(".")[0] >= "5"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that follow one another on one node.

    Args:
        host: as `host_name` calls the node.
        ranks: how many.
        program: argv of each.
    """

    host: str
    ranks: int
    program: tuple[str, ...]


def host_name(index: int) -> str:
    """What a node is called to `mpirun`.

    No name of the network: `mpirun` would look it up, take it for its own machine, or cut its domain off, and it need not
    reach it either, since the agents do.

    Args:
        index: of the node in the plan.
    """
    return f"rankdeck-{index}" if index else HEAD


def mpirun_argv(mpi: Mpi, parts: Sequence[Part], address: str = "") -> list[str]:
    """The command that starts the program of each part once for each of its ranks.

    More ranks than cores are allowed; on one machine Open MPI then lets waiting ranks yield, which is why it must know the true
    number of cores. Ranks are not bound to cores, as they aren't anywhere else in rankdeck.

    Args:
        mpi: which MPI.
        parts: in the order of their ranks.
        address: at which other nodes reach the one that this runs on.
    """
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
        option, ways, remote = ("--prtemca", "plm_ssh", "ssh") if mpi.has_prrte else ("--mca", "plm_rsh", "rsh")
        argv += [option, "plm", remote, option, f"{ways}_agent", f"sh {LAUNCHER}", option, f"{ways}_no_tree_spawn", "1"]
        others = len({part.host for part in parts} - {HEAD})
        argv += [option, f"{ways}_num_concurrent", str(others), "--leave-session-attached"]
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


def can_place(mpi: Mpi, homes: Sequence[str]) -> bool:
    """Whether an MPI can place ranks so. MPICH fills its hosts in order and then begins anew.

    Args:
        mpi: which.
        homes: the node of each rank.
    """
    hosts = _turn([(home, len(list(run))) for home, run in groupby(homes)])
    return mpi.implementation != "mpich" or len({home for home, _ in hosts}) == len(hosts)


def _turn(hosts: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The shortest beginning that the whole repeats."""
    for length in range(1, len(hosts)):
        turns, rest = divmod(len(hosts), length)
        if not rest and hosts == hosts[:length] * turns:
            return hosts[:length]
    return hosts


def _is_spread(parts: Sequence[Part]) -> bool:
    return any(part.host != HEAD for part in parts)


def mpirun_environment(mpi: Mpi, uid: int, *, spread: bool) -> dict[str, str]:
    """What `mpirun` and its daemons need in their environment.

    Args:
        mpi: which MPI.
        uid: of the user: Open MPI refuses root unless told twice.
        spread: whether there are other nodes.
    """
    if mpi.implementation == "mpich":
        return {"HYDRA_LAUNCHER_EXTRA_ARGS": LAUNCHER} if spread else {}
    if uid == 0:
        names = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
        names += ["PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"]
        return dict.fromkeys(names, "1")
    return {}


def launcher_script(argv: Sequence[str]) -> str:
    """What `LAUNCHER` says.

    Args:
        argv: of the program that has a command run on another node; it is given the host and the command.
    """
    return f'exec {shlex.join(argv)} "$@"\n'


def interface_environment(mpi: Mpi, interface: str) -> dict[str, str]:
    """What makes ranks use an interface for TCP; faster networks are found by MPI itself.

    Args:
        mpi: which MPI.
        interface: its name; empty: nothing is known.
    """
    if not interface:
        return {}
    return {"OMPI_MCA_btl_tcp_if_include" if mpi.implementation == "openmpi" else "FI_TCP_IFACE": interface}
