"""Which CPUs of a node each of its ranks gets (`layout.bind`), of those that this process may use."""

from __future__ import annotations

import contextlib
import glob
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CPU = "sys/devices/system/cpu/cpu{}/topology/{}"
GPUS = "proc/driver/nvidia/gpus"


def shares(
    bind: str, count: int, environment: Mapping[str, str] | None = None, *, allowed: Sequence[int] = (), root: str = "/"
) -> list[list[int]]:
    """Returns the CPUs of each rank of this node, in the order of local ranks.

    With `core`, each rank gets cores of its own, with all their hardware threads. With `numa` and `socket`, it gets the CPUs of as many
    of them as it is entitled to, or shares one with its neighbours; if ranks compute on GPUs, the one that its GPU is attached to.

    Args:
        bind: `core`, `numa` or `socket`.
        count: ranks of this node.
        environment: of ranks that compute on GPUs, which names the GPUs that they see; None: they compute on CPUs.
        allowed: CPUs to distribute; empty: those that this process may use.
        root: folder that contains `sys`, `proc` and `dev`.

    Raises:
        ValueError: there are fewer cores than ranks.
    """
    domains = _domains(bind, allowed or sorted(os.sched_getaffinity(0)), root)
    if bind == "core" and len(domains) < count:
        raise ValueError(f"{count} ranks for {len(domains)} {'core' if len(domains) == 1 else 'cores'}")
    found = []
    for rank in range(count):
        first, last = rank * len(domains) // count, (rank + 1) * len(domains) // count
        found.append(sorted(cpu for domain in domains[first : max(last, first + 1)] for cpu in domain))
    if environment is not None and bind != "core":
        for rank, near in enumerate(_gpu_cpus(environment.get("CUDA_VISIBLE_DEVICES"), root)[:count]):
            overlap, nearest = max((len(near.intersection(domain)), domain) for domain in domains)
            if overlap:
                found[rank] = nearest
    return found


def words(cpus: Sequence[int]) -> str:
    """Returns CPUs as the kernel lists them: `0-3,8`. They are sorted."""
    spans: list[list[int]] = []
    for cpu in cpus:
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


@contextlib.contextmanager
def bound_to(cpus: Sequence[int]) -> Iterator[None]:
    """Binds this process meanwhile, so that processes that it starts are bound from their first instruction on. Empty: nothing changes.

    Raises:
        OSError: it may not use any of these CPUs.
    """
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, before)


def _domains(bind: str, allowed: Sequence[int], root: str) -> list[list[int]]:
    """Returns the allowed CPUs by core, NUMA node or socket. Neighbours in this list are neighbours in the machine."""
    nodes = _numa_nodes(root)
    places = {}
    for cpu in allowed:
        numa = next((number for number, cpus in nodes.items() if cpu in cpus), 0)
        socket = _number(CPU.format(cpu, "physical_package_id"), root)
        core = min([one for one in _cpus(CPU.format(cpu, "thread_siblings_list"), root) if one in allowed] or [cpu])
        places[cpu] = {"socket": (socket,), "numa": (socket, numa), "core": (socket, numa, core)}[bind]
    return [[cpu for cpu in allowed if places[cpu] == place] for place in sorted(set(places.values()))]


def _gpu_cpus(visible: str | None, root: str) -> list[set[int]]:
    """Returns the CPUs near each GPU that ranks see, in CUDA's order; none if that is unknown."""
    nodes = _numa_nodes(root)
    found = []
    for folder in sorted(glob.glob(os.path.join(root, GPUS, "*"))):
        minor = re.search(r"Device Minor:\s*([0-9]+)", _text(os.path.join(folder, "information")))
        if minor and _opens(os.path.join(root, f"dev/nvidia{minor[1]}")):
            bus = os.path.basename(folder).lower()
            found.append(nodes.get(_number(f"sys/bus/pci/devices/{bus}/numa_node", root), set()))
    if visible is None:
        return found
    chosen = [word.strip() for word in visible.split(",")]
    if not all(word.isdigit() and int(word) < len(found) for word in chosen):  # names, which only the driver knows
        return []
    return [found[int(word)] for word in chosen]


def _opens(device: str) -> bool:
    """Whether this process may use a device: a control group may forbid it even if its mode allows it. CUDA counts the others only."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _numa_nodes(root: str) -> dict[int, set[int]]:
    folders = glob.glob(os.path.join(root, "sys/devices/system/node/node[0-9]*"))
    return {int(folder.rpartition("node")[2]): _cpus(os.path.join(folder, "cpulist"), root) for folder in folders}


def _cpus(path: str, root: str) -> set[int]:
    """Returns the CPUs in a file such as `0-3,8`; none if it can't be read."""
    found: set[int] = set()
    for span in _text(os.path.join(root, path)).split(","):
        first, _, last = span.strip().partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return found


def _number(path: str, root: str) -> int:
    try:
        return int(_text(os.path.join(root, path)))
    except ValueError:
        return 0


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(1 << 16)
    except OSError:
        return ""
