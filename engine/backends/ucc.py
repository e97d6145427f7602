"""ucc: CPU tensors through UCC and UCX, on a stock torch: `rankdeck.c10d.ucc` is the process group, over the library of the system."""

from __future__ import annotations

from pathlib import Path

from engine.core.errors import CheckError
from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, ProgramOutput

SUMMARY = "CPU tensors through UCC and UCX; needs libucc"

ASKS_NODES = False

PROGRAM = (Path(__file__).resolve().parents[2] / "rankdeck/c10d/_ucc/library.py").read_text()
"""Tells whether the Python which runs it can load libucc, in the words of a rank."""

_SIGN = "ucc: "
"""With which its words begin."""

_START_TOGETHER = "with ucc all ranks start together"
"""Decision 15: a group that was formed anew among survivors has ended in an abort inside the libraries."""


def settings(*, one_machine: bool) -> BackendSettings:
    """On one machine UCX needs shared memory and the loopback interface: it looks at no other device, and nobody else reaches it."""
    env = {"RANKDECK_BACKEND": "ucc", "UCX_ERROR_SIGNALS": ""}
    if one_machine:
        env |= {"UCX_TLS": "self,sm,tcp", "UCX_NET_DEVICES": "lo"}
    return BackendSettings(name="ucc", device="cpu", env=env, start_together=_START_TOGETHER)


def check(ranks: int, facts: NodeFacts) -> None:
    """Any number of ranks can run: they share cores where there are too few."""


def judge(output: ProgramOutput, plan: LaunchPlan) -> str:
    """Which UCC ranks find.

    Args:
        said: by the program. A crash and a hang prove nothing.
        plan: what would be launched.

    Raises:
        CheckError: there is no libucc, or a part of it is missing, and torch was built without.
    """
    _, sign, words = output.text.rpartition(_SIGN)
    fact, _, hint = words.strip().partition("\n")
    if not sign or output.status not in (0, 1):
        return ""
    if output.status:
        raise CheckError(fact, hint=hint)
    path, _, version = fact.rpartition(" ")
    return f"UCC {version}, {path}"


def check_plan(plan: LaunchPlan) -> None:
    """Nothing shows only in the whole."""
