"""Network namespaces and links, made with `ip` and removed whatever is in them.

All names begin with `rd<pid>-` of the pytest that made them. So two runs never collide, and what a killed run has left is
known by its pid, which is no more.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

from tests.support import PATIENCE, is_alive, kill_hard, run_program, wait_until

SBIN = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
"""Where root's commands are, for whoever does not have them on their PATH."""

PREFIX = "rd"  # short: an interface's name has 15 bytes at most (IFNAMSIZ of linux/if.h), and `rd4194304-99-4` has 14


def program(name: str) -> str:
    """The absolute path of one of root's commands; the name itself where there is none."""
    return shutil.which(name, path=SBIN) or name


def ip(*lines: str, namespace: str = "") -> None:
    """Runs commands of `ip`, all in one process. `lines`: such as `link set lo up`. `namespace`: where; ours if empty. Raises AssertionError:
    one failed, with what `ip` said of it."""
    argv = [program("ip"), *(["-n", namespace] if namespace else []), "-batch", "-"]
    done = subprocess.run(
        argv, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, f"ip {lines}: {done.stderr.strip()}"


def reason_to_skip() -> str:
    """Why no cluster can be made here; empty where one can."""
    if os.geteuid() != 0:
        return "needs root: nodes are network namespaces"
    for name in ("ip", "nft", "nsenter", "ssh", "ssh-keygen", "sshd", "unshare"):
        if shutil.which(name, path=SBIN) is None:
            return f"there is no {name}"
    trial = f"{PREFIX}{os.getpid()}-0"
    try:
        ip(f"netns add {trial}")
        ip(f"link add {trial} type veth peer name eth1 netns {trial}")
        ip("address add fd00::1/64 dev eth1", namespace=trial)
    except AssertionError as error:
        return f"network namespaces can't be made: {error}"
    finally:
        remove(trial)
    return ""


def free_network() -> int:
    """A number x for which this machine has no address in 10.213.x.0/24. It is this process's until that ends."""
    shown = run_program([program("ip"), "-4", "-o", "address"], check=True)
    taken = {int(number) for number in re.findall(r" 10\.213\.(\d+)\.", shown.stdout)}
    return next(number for number in range(1, 251) if number not in taken and _reserve(number))


_reserved: list[socket.socket] = []


def _reserve(number: int) -> bool:
    """Whether no other run of these tests has this number."""
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0rankdeck-tests-network-{number}")
    except OSError:
        held.close()
        return False
    _reserved.append(held)
    return True


def pids_in(namespace: str) -> list[int]:
    """Every process whose network is this namespace, zombies apart."""
    try:
        wanted = os.stat(f"/run/netns/{namespace}")
    except FileNotFoundError:
        return []
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.path.samestat(os.stat(f"/proc/{name}/ns/net"), wanted):
                found.append(int(name))
    return sorted(filter(is_alive, found))


def remove(name: str) -> None:
    """Removes the namespace and the link of this name, where they exist, and kills every process in there."""

    def is_empty() -> bool:
        pids = pids_in(name)
        for pid in pids:
            kill_hard(pid)
        return not pids

    if Path("/run/netns", name).exists():
        wait_until(is_empty, what=f"no process is left in {name}")
        with contextlib.suppress(AssertionError):  # another run of these tests may remove the same leftovers
            ip(f"netns delete {name}")
    # The link goes with the namespace, but the kernel takes its time, and then it is gone before we say so.
    with contextlib.suppress(AssertionError):
        ip(f"link delete {name}")
    assert not Path("/sys/class/net", name).exists(), f"{name} can't be removed"


def names() -> list[str]:
    """Every namespace and link of ours, or of another run of these tests."""
    folders = [path for path in (Path("/run/netns"), Path("/sys/class/net")) if path.is_dir()]
    found = {path.name for folder in folders for path in folder.iterdir()}
    return sorted(name for name in found if re.fullmatch(rf"{PREFIX}\d+-\d+(-(\d+|L))?", name))


def remove_leftovers(of_cluster: str) -> None:
    """Removes what test runs that were killed have left. `of_cluster`: the name of a cluster that is about to be made; what has it already is a
    leftover too."""
    for name in names():
        cluster, pid = re.findall(rf"({PREFIX}(\d+)-\d+)", name)[0]
        if cluster == of_cluster or not is_alive(int(pid)):
            remove(name)
