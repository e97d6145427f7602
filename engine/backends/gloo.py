"""gloo: collectives over TCP between CPUs, in every torch wheel."""

from __future__ import annotations

from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, ProgramOutput

SUMMARY = "CPU tensors over TCP; in every torch wheel"

ASKS_NODES = False

PROGRAM = ""


def settings(*, one_machine: bool) -> BackendSettings:
    """Gloo resolves its address from the host name, which is unroutable or wrong on many machines (pytorch#26166). On one machine, the
    loopback interface always works, and other machines can't connect to it."""
    return BackendSettings(name="gloo", device="cpu", env={"GLOO_SOCKET_IFNAME": "lo"} if one_machine else {})


def check(ranks: int, facts: NodeFacts) -> None:
    """Every node can run gloo."""


def judge(output: ProgramOutput, plan: LaunchPlan) -> str:
    """Not needed."""
    return ""


def check_plan(plan: LaunchPlan) -> None:
    """Any plan can run."""
