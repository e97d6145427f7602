"""ucc: CPU tensors through UCC and UCX, with any torch: `rankdeck.c10d.ucc` is the process group, and uses the system's libucc."""

from engine.core.errors import CheckError
from engine.core.plan.plan import BackendSettings, LaunchPlan, ProgramOutput
from engine.gate import Permit
from engine.installed import LIBRARY

SUMMARY = "CPU tensors through UCC and UCX; needs libucc"

PROGRAM = (LIBRARY / "c10d/_ucc/library.py").read_text()  # prints whether Python can load libucc
_PREFIX = "ucc: "  # beginning of its output

_START_TOGETHER = "with ucc all ranks start together"
"""Decision 15: the libraries may abort when surviving ranks create a group again."""


def settings(one_machine: bool, permit: Permit) -> BackendSettings:
    """On one machine UCX uses only shared memory and the loopback interface, which other machines can't reach."""
    env = {"RANKDECK_BACKEND": "ucc", "UCX_ERROR_SIGNALS": ""}
    if one_machine:
        env |= {"UCX_TLS": "self,sm,tcp", "UCX_NET_DEVICES": "lo"}
    return BackendSettings(name="ucc", device="cpu", env=env, start_together=_START_TOGETHER, torch="2.4")


def judge(output: ProgramOutput, plan: LaunchPlan) -> str:
    """The UCC that ranks find, from the output of the program. A crash or a hang proves nothing. Raises CheckError: there is no libucc, or
    a part of it is missing, and torch was built without."""
    _, sign, words = output.text.rpartition(_PREFIX)
    fact, _, hint = words.strip().partition("\n")
    if not sign or output.status not in (0, 1):
        return ""
    if output.status:
        raise CheckError(fact, hint=hint)
    path, _, version = fact.rpartition(" ")
    return f"UCC {version}, {path}"
