"""gloo: collectives over TCP between CPUs, in every torch wheel."""

from engine.core.plan.plan import BackendSettings
from engine.gate import Permit

SUMMARY = "CPU tensors over TCP; in every torch wheel"


def settings(one_machine: bool, permit: Permit) -> BackendSettings:
    """Gloo resolves its address from the host name, which is unroutable or wrong on many machines (pytorch#26166). On one machine, the
    loopback interface always works, and other machines can't connect to it."""
    return BackendSettings(name="gloo", device="cpu", env={"GLOO_SOCKET_IFNAME": "lo"} if one_machine else {})
