"""Environment variables of torch and its communication libraries: which exist, what they do, and which names do nothing.

One module for each library. The facts come from its source, headers or tools; tests compare them with installed versions.
"""

from __future__ import annotations

from engine.backends.variables import gloo, mpich, nccl, openmpi, torch, ucc
from engine.backends.variables.base import Family, Gone, Variable

FAMILIES: tuple[Family, ...] = (
    gloo.FAMILY,
    nccl.NCCL,
    nccl.TORCH_NCCL,
    ucc.UCC,
    ucc.UCX,
    openmpi.OPENMPI,
    mpich.MPICH,
    mpich.MPI4PY,
    torch.TORCH,
    torch.LAUNCH,
)
"""In the order in which they are shown: the backends' own first."""

VARIABLES: dict[str, tuple[Family, Variable]] = {
    one.name: (family, one) for family in FAMILIES for one in family.variables
}
ALIASES: dict[str, tuple[Family, Variable]] = {
    alias: (family, one) for family in FAMILIES for one in family.variables for alias in one.aliases
}
GONE: dict[str, tuple[Family, Gone]] = {one.name: (family, one) for family in FAMILIES for one in family.gone}


def families_of(backend: str) -> list[Family]:
    return [family for family in FAMILIES if backend in family.backends]


def family_of(name: str) -> Family | None:
    """The family of a name: by the name itself, or by the longest matching prefix."""
    for known in (VARIABLES, ALIASES, GONE):
        if name in known:
            return known[name][0]
    fitting = [(prefix, family) for family in FAMILIES for prefix in family.prefixes if name.startswith(prefix)]
    return max(fitting, key=lambda pair: len(pair[0]))[1] if fitting else None
