"""nccl: collectives between NVIDIA GPUs, in torch's wheels for CUDA."""

from engine.core.errors import CheckError
from engine.core.plan.plan import BackendSettings, NodeFacts
from engine.gate import Permit

SUMMARY = "GPUs through NVIDIA's NCCL; needs a torch for CUDA and a GPU for each rank"

_NO_GPU = 'choose another backend, or set backend.fallback = ["gloo"] to run without GPUs'
_FEW_GPUS = 'start fewer ranks there, or set backend.fallback = ["gloo"] to run without GPUs'
_NO_CUDA = "install torch from PyTorch's wheels for CUDA, or set launch.python to a Python that has one"

_DIAGNOSTICS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "2000"}
"""Turns on torch's flight recorder, which is off in some releases: it records the newest collectives, and writes them to a file when one
takes longer than the profile's timeout."""


def settings(one_machine: bool, permit: Permit) -> BackendSettings:
    """On one machine, NCCL connects over the loopback interface, which always exists."""
    env = {**_DIAGNOSTICS, **({"NCCL_SOCKET_IFNAME": "lo"} if one_machine else {})}
    return BackendSettings(name="nccl", device="cuda", env=env)


def check(ranks: int, facts: NodeFacts) -> None:
    """Raises CheckError unless there is a GPU for each rank, and a torch that can use it."""
    if not facts.gpus:
        raise CheckError(f"{facts.name} has no NVIDIA GPU", hint=_NO_GPU)
    if facts.torch_cuda == "":
        raise CheckError(f"torch {facts.torch} on {facts.name} is a build for CPUs", hint=_NO_CUDA)
    if facts.gpus < ranks:
        gpus = "1 GPU" if facts.gpus == 1 else f"{facts.gpus} GPUs"
        raise CheckError(f"{facts.name} has {gpus} for {ranks} ranks: NCCL needs one for each", hint=_FEW_GPUS)
