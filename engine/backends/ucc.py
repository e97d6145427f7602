"""ucc: CPU tensors through UCC and UCX, on a stock torch: `rankdeck.c10d.ucc` is the process group, over the library of the system."""

from __future__ import annotations

from pathlib import Path

from engine.core.errors import CheckError
from engine.core.plan import BackendSettings, LaunchPlan, NodeFacts, Said

SUMMARY = "CPU tensors through UCC and UCX; needs libucc"

ASKS_NODES = False

PROGRAM = (Path(__file__).resolve().parents[2] / "rankdeck/c10d/_ucc_library.py").read_text()
"""Tells whether the Python which runs it can load libucc, in the words of a rank."""

_ONE_FATE = "with ucc all ranks start together"
"""Decision 15: a group that was formed anew among survivors has ended in an abort inside the libraries."""


def settings(*, one_machine: bool) -> BackendSettings:
    """On one machine UCX needs shared memory and the loopback interface: it looks at no other device, and nobody else reaches it."""
    env = {"RANKDECK_BACKEND": "ucc", "UCX_ERROR_SIGNALS": ""}
    if one_machine:
        env |= {"UCX_TLS": "self,sm,tcp", "UCX_NET_DEVICES": "lo"}
    return BackendSettings(name="ucc", device="cpu", env=env, one_fate=_ONE_FATE)


def check(ranks: int, facts: NodeFacts) -> None:
    """Any number of ranks can run: they share cores where there are too few."""


def judge(said: Said, decided: LaunchPlan) -> str:
    """Which UCC ranks find.

    Args:
        said: by the program. A crash and a hang prove nothing.
        decided: what would be launched.

    Raises:
        CheckError: there is no libucc, or a part of it is missing, and torch was built without.
    """
    lines = said.text.splitlines()
    if said.status == 1 and len(lines) >= 2:
        raise CheckError(lines[-2], hint=lines[-1])
    if said.status == 0 and lines:
        path, _, version = lines[-1].rpartition(" ")
        return f"UCC {version}, {path}"
    return ""


def check_plan(decided: LaunchPlan) -> None:
    """Nothing shows only in the whole."""
