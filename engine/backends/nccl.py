"""nccl: collectives between NVIDIA GPUs, one rank to a GPU."""

from __future__ import annotations

from engine.core.errors import CheckError
from engine.core.plan import BackendSettings, NodeFacts

SUMMARY = "NVIDIA GPUs, one rank to a GPU"


def settings(*, one_machine: bool) -> BackendSettings:
    """The full device mask stays as it is and a rank picks its GPU by LOCAL_RANK: a mask of one GPU for each rank would
    switch peer-to-peer copies off. Bootstrap goes over loopback on one machine."""
    return BackendSettings(name="nccl", device="cuda", env={"NCCL_SOCKET_IFNAME": "lo"} if one_machine else {})


def check(ranks: int, facts: NodeFacts) -> None:
    """NCCL refuses two ranks on one GPU, long after everything has started: say so before."""
    if facts.gpus == 0:
        raise CheckError(f"{facts.name} has no NVIDIA GPU, which nccl needs", hint='choose backend.name = "gloo"')
    if ranks > facts.gpus:
        hint = f"set layout.ranks_per_node = {facts.gpus}, or choose gloo"
        raise CheckError(
            f"{ranks} ranks on {facts.name}, which has {facts.gpus} GPUs: nccl wants one for each rank", hint=hint
        )
