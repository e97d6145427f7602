"""Findings about one node that depend on the job: its files, Python, torch and backend. One function for each check."""

from msgspec.structs import replace

from engine.core.checks.findings import Finding, JobFacts, Machine, Space, Torch, TorchFacts, fail, ok, skip, warn
from engine.core.checks.node_findings import worst
from engine.core.numbers import size_words
from engine.core.plan.environment import backends_in
from engine.core.plan.needs import lack_of
from engine.core.plan.plan import LaunchPlan, PlannedNode
from engine.core.words import count, import_words, preload_words

LOW_SPACE, NO_SPACE = 1 << 30, 1 << 24
LOW_FILES, NO_FILES = 1000, 50  # a folder with fewer free bytes or files is nearly full, or full
LOW_SHARED = 1 << 28  # bytes of /dev/shm: with the 64 MiB of containers DataLoader workers die by SIGBUS

SLOW_WRITE = 1.0
"""Seconds for a small file to reach the disk. The supervisor writes one for each request and each end of a run, and waits for it."""

BUSY = 0.1  # a GPU with more than this part of its memory used is in use

SHARE = "keep it in a folder that all nodes share, or copy it there"


def job_findings(plan: LaunchPlan, node: str, machine: Machine, job: JobFacts, *, full: bool) -> list[Finding]:
    """Findings that do not need an import of torch. `full`: torch will be imported, so its files are not judged."""
    found = [_workdir(plan, node, job), _script(plan, node, job), _disk(node, job)]
    if job.start:
        hint = "look at PYTHONPATH, [env] of the profile and launch.setup"
        found.append(fail(node, "python", f"it does not start with the settings of a rank: {job.start}", hint))
    if not full:
        found += [_installed_torch(plan, node, machine, job), _quick_backend(plan, node, machine, job)]
    return found


def _workdir(plan: LaunchPlan, node: str, job: JobFacts) -> Finding:
    if job.workdir:
        hint = "create it there, or set launch.workdir to a folder that all nodes share"
        return fail(node, "workdir", f"{plan.workdir}: {_small(job.workdir)}", hint)
    if not job.workdir_writable:
        hint = "ranks that write relative paths would fail: set launch.workdir to a writable folder"
        return warn(node, "workdir", f"{plan.workdir} is not writable", hint)
    return ok(node, "workdir", plan.workdir)


def _script(plan: LaunchPlan, node: str, job: JobFacts) -> Finding:
    """The finding about the script; on the first node also the modules that it imports slowly."""
    found = _script_there(plan, node, job)
    if found.state != "ok" or not plan.slow_imports or node != plan.nodes[0].name:
        return found
    text = f"{found.text}; in its last run each rank imported {import_words(plan.slow_imports)}"
    return replace(found, text=text, hint=preload_words(plan.offered_preload))


def _script_there(plan: LaunchPlan, node: str, job: JobFacts) -> Finding:
    target = plan.program.target
    match plan.program.kind:
        case "recipe":
            return ok(node, "script", f"{target} comes with rankdeck")
        case "module" if job.module is None:
            return skip(node, "script", "Python does not start")
        case "module" if not job.module:
            hint = "install it for launch.python, or set launch.workdir to its folder"
            return fail(node, "script", f"there is no module {target.partition('.')[0]}", hint)
        case "module":
            return ok(node, "script", f"module {target}")
        case "script":
            assert job.script is not None
    if job.script.trouble:
        return fail(node, "script", f"{target}: {_small(job.script.trouble)}", SHARE)
    if not job.script.size:
        return warn(node, "script", f"{target} is empty", "copy it there again")
    return ok(node, "script", f"{size_words(job.script.size)}, SHA-256 {job.script.sha256[:8]}")


def _disk(node: str, job: JobFacts) -> Finding:
    found = worst(_space(node, space) for space in job.spaces)
    if found.state == "ok" and job.shared_memory is not None and job.shared_memory < LOW_SHARED:
        text = f"/dev/shm has {size_words(job.shared_memory)}: DataLoader workers may die by SIGBUS"
        return warn(node, "disk", text, "increase it for the container: docker run --shm-size=8g, or --ipc=host")
    return found


def _space(node: str, space: Space) -> Finding:
    temporary = space.what.startswith("temporary")
    is_home = space.what.startswith("home")  # ranks may need nothing there, and some file systems show no free space
    hint = "delete files there" + (", or set TMPDIR" if temporary else "")
    if space.trouble and (temporary or is_home):
        text = f"nothing can be written to the {space.what} {space.path}: {_small(space.trouble)}"
        if temporary:
            return fail(node, "disk", text, hint)
        return warn(node, "disk", text, f"{hint}, or ask for more quota: runs and caches of libraries are kept there")
    text = f"the {space.what} {space.path} has {'?' if space.bytes is None else size_words(space.bytes)} free"
    if space.files is not None and space.files < LOW_FILES:
        text += f", for {count(space.files, 'more file')}"
    if _is_below(space, NO_SPACE, NO_FILES) and not is_home:
        return fail(node, "disk", text, hint)
    if _is_below(space, LOW_SPACE, LOW_FILES):
        return warn(node, "disk", text, hint)
    if space.seconds is not None and space.seconds > SLOW_WRITE:
        text = f"the {space.what} {space.path} is slow: a small file took {space.seconds:.1f} s to reach the disk"
        faster = "TMPDIR" if temporary else "RANKDECK_HOME"
        hint = f"set {faster} to a folder on a faster disk; ranks do not wait, but commands do"
        return warn(node, "disk", text, hint)
    return ok(node, "disk", text)


def _is_below(space: Space, size: int, files: int) -> bool:
    return (space.bytes is not None and space.bytes < size) or (space.files is not None and space.files < files)


def _no_torch(node: str, text: str) -> Finding:
    return fail(node, "torch", text, "set launch.python to a Python that has torch, or load one in launch.setup")


def _installed_torch(plan: LaunchPlan, node: str, machine: Machine, job: JobFacts) -> Finding:
    if lack := lack_of(plan, torch=job.torch):
        return fail(node, "torch", lack.fact, lack.hint)
    if job.has_torch:
        return ok(node, "torch", f"{job.torch or 'of unknown version'}, not imported by a quick check")
    if job.start:
        return skip(node, "torch", "Python does not start")
    return _no_torch(node, f"{machine.executable} has no torch")


def _quick_backend(plan: LaunchPlan, node: str, machine: Machine, job: JobFacts) -> Finding:
    backends = backends_in(plan.backend.name)
    if "mpi" in backends:
        return _mpi(plan, node, machine, job, ())
    if "ucc" in backends:
        return _ucc(node)
    if "nccl" in backends and job.torch_cuda == "":
        hint = "install torch from PyTorch's wheels for CUDA"
        return fail(node, "backend", f"torch {job.torch} is a build for CPUs", hint)
    return skip(node, "backend", "not part of a quick check")


def _mpi(plan: LaunchPlan, node: str, machine: Machine, job: JobFacts, built_in: tuple[str, ...]) -> Finding:
    """MPI needs an mpirun, and mpi4py unless torch was built with MPI."""
    if not machine.mpirun:
        hint = 'load it in launch.setup ("module load openmpi"), or install Open MPI or MPICH'
        return fail(node, "backend", "there is no mpirun", hint)
    if not job.mpi4py and "mpi" not in built_in:
        hint = f"on that node: {machine.executable} -m pip install mpi4py"
        return fail(node, "backend", f"{machine.executable} has no mpi4py", hint)
    how = f"mpi4py {job.mpi4py}; {plan.backend.rejoin_words}" if job.mpi4py else "built into torch"
    return ok(node, "backend", f"{machine.mpirun}, {how}")


def _ucc(node: str) -> Finding:
    """Replaced later if the backend's program finds a libucc."""
    return skip(node, "backend", "rankdeck's own, with the libucc that ranks find when they start")


def torch_findings(plan: LaunchPlan, node: PlannedNode, machine: Machine, job: JobFacts, torch: Torch) -> list[Finding]:
    """Findings from an import of torch."""
    name = node.name
    if lack := lack_of(plan, torch=torch.facts.version if torch.facts else job.torch):
        return [fail(name, "torch", lack.fact, lack.hint), skip(name, "backend", "torch is too old")]
    if torch.timed_out:
        hint = "a file server may be slow; on that node: python -X importtime -c 'import torch'"
        return [
            warn(name, "torch", "its import timed out", hint),
            skip(name, "backend", "torch was not imported in time"),
        ]
    if torch.facts is None:
        is_missing = torch.trouble.startswith("ModuleNotFoundError") and "'torch'" in torch.trouble
        text = f"{machine.executable} has no torch" if is_missing else f"it can't be imported: {torch.trouble}"
        return [_no_torch(name, text), skip(name, "backend", "torch can't be imported")]
    facts = torch.facts
    parts = (facts.version, facts.cuda and f"CUDA {facts.cuda}", facts.nccl and f"NCCL {facts.nccl}")
    found = [ok(name, "torch", ", ".join(filter(None, parts))), _backend(plan, name, machine, job, facts)]
    if plan.backend.device == "cuda":
        found.append(_visible_gpus(node, machine, torch, facts))
    return found


def _backend(plan: LaunchPlan, node: str, machine: Machine, job: JobFacts, facts: TorchFacts) -> Finding:
    if facts.trouble:
        return fail(node, "backend", f"torch raises an exception: {facts.trouble}", "reinstall torch")
    if not facts.distributed:
        return fail(node, "backend", "this torch has no torch.distributed", "install a wheel from PyTorch")
    wanted = backends_in(plan.backend.name)
    if "mpi" in wanted:
        return _mpi(plan, node, machine, job, facts.backends)
    own = {"ucc"} - set(facts.backends)
    if own.intersection(wanted):
        return _ucc(node)
    if missing := [backend for backend in wanted if backend not in facts.backends]:
        text = f"this torch was built without {missing[0]}; it has {', '.join(facts.backends) or 'none'}"
        return fail(node, "backend", text, "install a torch that has it, or choose another backend.name")
    return ok(node, "backend", f"{' and '.join(wanted)} {'is' if len(wanted) == 1 else 'are'} in this torch")


def _visible_gpus(node: PlannedNode, machine: Machine, torch: Torch, facts: TorchFacts) -> Finding:
    """GPUs as torch sees them, and whether they are in use."""
    if facts.gpus < len(node.ranks):
        text = f"torch can use {count(facts.gpus, 'GPU')} of {machine.gpus}, for {count(len(node.ranks), 'rank')}"
        hint = "check CUDA_VISIBLE_DEVICES, whether torch was built with CUDA, and the driver (nvidia-smi)"
        return fail(node.name, "gpus", text, hint)
    busy = [number for number, one in enumerate(torch.devices) if one.total - one.free > BUSY * one.total]
    if busy:
        one = torch.devices[busy[0]]
        text = f"GPU {' '.join(map(str, busy))} in use; on {busy[0]}, {size_words(one.free)} of {size_words(one.total)} free"
        return warn(node.name, "gpus", text, "nvidia-smi on that node shows the processes")
    names = ", ".join(dict.fromkeys(one.name for one in torch.devices))
    free = min((one.free for one in torch.devices), default=None)
    text = f"{count(facts.gpus, 'GPU')}{f', {names}' if names else ''}"
    return ok(node.name, "gpus", text if free is None else f"{text}, {size_words(free)} free on each")


def _small(text: str) -> str:
    """An error text of the kernel, inside a sentence."""
    return text[:1].lower() + text[1:]
