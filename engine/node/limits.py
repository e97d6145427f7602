"""Limits of this node for its user: open files, processes, memory, and CPUs, of which `layout.bind` gives each rank its own."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import resource
from collections.abc import Iterator, Mapping, Sequence

OPEN_FILES = 65_536
"""The soft limit of open files that the agent sets, if the hard limit allows it; ranks inherit it. Some programs close all numbers
up to the limit, so more could make them slow."""

MEMORY_SHARE, MEMORY_ENOUGH = 0.1, 8 << 30  # memory is short if less than this share and these bytes are left
NO_LIMIT = 1 << 60  # the kernel shows unlimited memory as a number near 2**63


def open_files() -> int | None:
    """Returns how many files a process of a run may open, after `allow_open_files`; None: no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    return max(soft, OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES))


def allow_open_files() -> None:
    """Raises this process's soft limit of open files. Most systems start with 1,024, and the agent needs three for each rank."""
    limit = open_files()
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def control_groups(controller: str, root: str) -> Iterator[tuple[str, bool]]:
    """Yields folders of this process's control groups that may limit something, at all levels, and whether they are of version 1.
    `controller`: `cpu`, `memory` or `pids`."""
    with contextlib.suppress(OSError), open(os.path.join(root, "proc/self/cgroup"), errors="surrogateescape") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            folder = os.path.join(root, "sys/fs/cgroup", controller if controllers else "")
            yield folder, bool(controllers)
            for part in path.split("/"):
                if part:
                    folder = os.path.join(folder, part)
                    yield folder, bool(controllers)


def memory_left(root: str = "/") -> tuple[int, int] | None:
    """Returns the bytes of memory that this process can still get, and of how many; None: unknown.

    Where control groups limit it, the tightest counts. Their caches of files can be given back.
    """
    info = numbers_in(os.path.join(root, "proc/meminfo"))
    if "MemAvailable:" not in info or "MemTotal:" not in info:
        return None
    rooms = [(info["MemAvailable:"] << 10, info["MemTotal:"] << 10)]
    for folder, is_old in control_groups("memory", root):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_old else ("memory.max", "memory.current")
        limit, used = (number_in(os.path.join(folder, name)) for name in names)
        if limit is not None and used is not None and limit < NO_LIMIT:
            cache = numbers_in(os.path.join(folder, "memory.stat")).get("inactive_file", 0)
            rooms.append((max(0, limit - used + cache), limit))
    return min(rooms, key=lambda room: room[0])


def is_memory_short(root: str = "/") -> bool:
    """Whether a template that only waits should give its memory back."""
    left = memory_left(root)
    return left is not None and left[0] < min(left[1] * MEMORY_SHARE, MEMORY_ENOUGH)


def processes_left(root: str = "/") -> int | None:
    """Returns how many more processes and threads this user may start; None: no limit."""
    left = []
    for folder, _ in control_groups("pids", root):
        limit, used = (number_in(os.path.join(folder, name)) for name in ("pids.max", "pids.current"))
        if limit is not None and used is not None:
            left.append(limit - used)
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and os.getuid() != 0:  # the kernel does not limit root
        left.append(soft - threads_of(os.getuid(), root))
    return max(0, min(left)) if left else None


def numbers_in(path: str) -> dict[str, int]:
    """Returns the numbers in a file with lines of a name and a number; empty if it can't be read."""
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return {words[0]: int(words[1]) for line in file if len(words := line.split()) >= 2}
    return {}


def number_in(path: str) -> int | None:
    """Returns the number in a file; None if there is none, as in `max`."""
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return int(file.read())
    return None


def threads_of(user: int, root: str = "/") -> int:
    """Returns the number of threads of a user's processes."""
    count, proc = 0, os.path.join(root, "proc")
    for name in os.listdir(proc):
        if name.isdigit():
            with contextlib.suppress(OSError, KeyError), open(os.path.join(proc, name, "status"), "rb") as file:
                # Bytes, because any user's process may have a name that is not UTF-8.
                status = dict(line.split(b":", 1) for line in file if b":" in line)
                if int(status[b"Uid"].split()[0]) == user:
                    count += int(status[b"Threads"])
    return count


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
        environment: variables of ranks that compute on GPUs, which name the GPUs that they see; None: they compute on CPUs.
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


@contextlib.contextmanager
def bound_to(cpus: Sequence[int]) -> Iterator[None]:
    """Binds this process meanwhile, so that processes that it starts are bound from their first instruction on. Empty: nothing changes.
    Raises OSError: it may not use any of these CPUs."""
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
        socket = number_in(os.path.join(root, CPU.format(cpu, "physical_package_id"))) or 0
        core = min([one for one in _cpus(CPU.format(cpu, "thread_siblings_list"), root) if one in allowed] or [cpu])
        places[cpu] = {"socket": (socket,), "numa": (socket, numa), "core": (socket, numa, core)}[bind]
    return [[cpu for cpu in allowed if places[cpu] == place] for place in sorted(set(places.values()))]


def _gpu_cpus(visible: str | None, root: str) -> list[set[int]]:
    """Returns the CPUs near each GPU that ranks see, in CUDA's order; none if that is unknown."""
    nodes = _numa_nodes(root)
    found = []
    for folder in sorted(glob.glob(os.path.join(root, GPUS, "*"))):
        minor = re.search(r"Device Minor:\s*([0-9]+)", _text(os.path.join(folder, "information")))
        if not minor:
            continue
        # A control group may forbid this process a device even if its mode allows it. CUDA counts the others only.
        with contextlib.suppress(OSError):
            os.close(os.open(os.path.join(root, f"dev/nvidia{minor[1]}"), os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
            device = os.path.join(root, "sys/bus/pci/devices", os.path.basename(folder).lower())
            found.append(nodes.get(number_in(os.path.join(device, "numa_node")) or 0, set()))
    if visible is None:
        return found
    chosen = [word.strip() for word in visible.split(",")]
    if not all(word.isdigit() and int(word) < len(found) for word in chosen):  # names, which only the driver knows
        return []
    return [found[int(word)] for word in chosen]


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


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(1 << 16)
    except OSError:
        return ""
