"""ucc: CPU tensors through UCC and UCX, on a stock torch: `rankdeck.c10d.ucc` is the process group, over the library of the system."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from engine.core.errors import CheckError
from engine.core.plan import BackendSettings, LaunchPlan, NodeFacts

SUMMARY = "CPU tensors through UCC and UCX; needs libucc"

ASKS_NODES = False

PROBE = Path(__file__).resolve().parents[2] / "rankdeck/c10d/_ucc_library.py"
"""A program that tells whether the Python which runs it can load libucc, in the words of a rank."""

_HAS_ITS_OWN = "import torch.distributed as dist; raise SystemExit(not dist.is_ucc_available())"

_ONE_FATE = "with ucc all ranks start together"
"""Decision 15: a group that was formed anew among survivors has ended in an abort inside the libraries."""

_SECONDS = 20.0
"""For each question to the Python of the ranks. Who does not answer is not refused."""


def settings(*, one_machine: bool) -> BackendSettings:
    """On one machine UCX needs shared memory and the loopback interface: it looks at no other device, and nobody else reaches it."""
    env = {"RANKDECK_BACKEND": "ucc", "UCX_ERROR_SIGNALS": ""}
    if one_machine:
        env |= {"UCX_TLS": "self,sm,tcp", "UCX_NET_DEVICES": "lo"}
    return BackendSettings(name="ucc", device="cpu", env=env, one_fate=_ONE_FATE)


def check(ranks: int, facts: NodeFacts) -> None:
    """Any number of ranks can run: they share cores where there are too few."""


def check_plan(decided: LaunchPlan, *, is_here: bool) -> None:
    """Finds out before the launch that ranks of this machine would find no UCC.

    Args:
        decided: what would be launched.
        is_here: whether ranks run on this machine.

    Raises:
        CheckError: there is no libucc, or a part of it is missing, and torch was built without.
    """
    if not is_here or decided.reach.setup:  # what the setup loads is there for ranks only
        return
    env = {**decided.backend.env, **os.environ, **decided.env}
    found = _ask([decided.python, "-I", str(PROBE)], env)
    if found is None or found.returncode != 1 or not found.stdout.strip():
        return
    own = _ask([decided.python, "-c", _HAS_ITS_OWN], env)
    if own is not None and own.returncode == 0:
        return
    fact, _, hint = found.stdout.decode(errors="replace").strip().partition("\n")
    raise CheckError(fact, hint=hint.strip())


def _ask(argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(
            argv, capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL, env=env
        )
    except (OSError, subprocess.SubprocessError):
        return None
