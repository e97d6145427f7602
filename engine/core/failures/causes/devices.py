"""GPUs and the backends that a torch has."""

from __future__ import annotations

from engine.core.failures.causes.cause import Cause

CAUSES: tuple[Cause, ...] = (
    Cause(
        id="C1",
        pattern=r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        hint="use a smaller batch, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in [env]",
        fix='env.PYTORCH_CUDA_ALLOC_CONF = "expandable_segments:True"',
    ),
    Cause(
        id="C2",
        pattern=r"invalid device ordinal",
        detail="the rank asked for a GPU that this node does not have",
        hint="reduce layout.ranks_per_node to the number of GPUs, or add GPUs to CUDA_VISIBLE_DEVICES",
        fix='layout.ranks_per_node = "auto"',
    ),
    Cause(
        id="C3",
        pattern=r"device-side assert triggered",
        detail="an assertion in a GPU kernel failed, most often because an index or class number is out of range",
        hint="run it once with CUDA_LAUNCH_BLOCKING=1, so that the traceback shows the failing line",
        fix='env.CUDA_LAUNCH_BLOCKING = "1"',
    ),
    Cause(
        id="C4",
        pattern=r"no kernel image is available|CUDA driver version is insufficient|(?:driver|NVIDIA driver)[^\n]{0,80} is too old",
        detail="this build of torch does not support the GPU or its driver",
        hint="install a build of torch that supports it, or update the driver",
        fix="nvidia-smi; python -m torch.utils.collect_env",
    ),
    Cause(
        id="C5",
        pattern=r"NVRM: Xid \((?P<place>[^)\n]{1,80})\): (?P<number>\d+)|uncorrectable ECC error",
        detail="the GPU itself failed (Xid {number} at {place})",
        hint="remove the node from the layout, and tell its administrator",
        fix="dmesg -T | grep -i xid",
    ),
    Cause(
        id="C8",
        pattern=r"CUDA error: an illegal memory access|CUDA error: unspecified launch failure|CUDA error: misaligned address",
        detail="a kernel accessed memory outside its allocation; the traceback may point to an unrelated line",
        hint="run it once with CUDA_LAUNCH_BLOCKING=1, so that the traceback shows the failing line",
        fix='env.CUDA_LAUNCH_BLOCKING = "1"',
    ),
    Cause(
        id="D5",
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        detail="a forked process used CUDA after its parent had initialised it",
        hint="start DataLoader workers with multiprocessing_context='spawn', and do not use the GPU in the dataset",
        fix='torch.multiprocessing.set_start_method("spawn")',
    ),
    Cause(
        id="C6",
        pattern=r"Torch not compiled with CUDA enabled|torch\.cuda\.is_available\(\) is False|has no attribute '_cuda_\w+'",
        detail="this torch was built without CUDA, or finds no GPU",
        hint="install a torch with CUDA where ranks run, use rankdeck.device(), or load with map_location",
        fix='python -c "import torch; print(torch.__version__, torch.cuda.is_available())"',
    ),
    Cause(
        id="C7",
        pattern=r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device is detected",
        detail="the rank can't use any GPU of this node",
        hint="check nvidia-smi and CUDA_VISIBLE_DEVICES there, or train on rankdeck.device(), which is the CPU on a node without GPUs",
        fix="nvidia-smi",
    ),
    Cause(
        id="C9",
        pattern=r"ProcessGroupNCCL is only supported with GPUs",
        detail="the rank can't use any GPU of this node, and nccl needs one",
        hint="check nvidia-smi and CUDA_VISIBLE_DEVICES there, or use the backend gloo",
        fix='backend.name = "gloo"',
    ),
    Cause(
        id="T7",
        pattern=r"Distributed package doesn't have (?P<name>\w+) built in",
        detail="this torch was built without {name}",
        hint="choose another backend.name, or set launch.python to a Python whose torch has {name}",
        fix='backend.name = "auto"',
    ),
    Cause(
        id="T8",
        pattern=r"Unknown (?:c10d )?backend type (?P<name>\w+)|(?i:invalid backend: '?(?P<other>\w+))",
        detail="torch has no backend {name}{other}",
        hint="correct the name, or import the package that registers it; if it is one of torch's own, reinstall torch",
        fix='backend.name = "auto"',
    ),
    Cause(
        id="T9",
        pattern=r"Failed to load the backend extension: (?P<name>[\w.-]+)",
        detail="import torch fails because of the installed backend extension {name}",
        hint="update or remove {name}; to load no such extensions, set the variable",
        fix='env.TORCH_DEVICE_BACKEND_AUTOLOAD = "0"',
    ),
    Cause(
        id="N17",
        pattern=r"No backend type associated with device type (?P<name>\w+)",
        detail="a collective was called with a tensor on {name}, but its process group has no backend for {name}",
        hint="move the tensor to rankdeck.device(), or use a process group with a backend for both devices",
        fix='torch.distributed.init_process_group("cpu:gloo,cuda:nccl")',
    ),
)
