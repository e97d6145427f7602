"""Finds and loads libucc, or explains what is missing. Also a program, `python library.py`, that does so without a rank. It uses only the
standard library and no other module of rankdeck, because a launch sends its text to the ranks' Python on every node."""

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from glob import iglob

NAME = "libucc.so.1"

VARIABLE = "RANKDECK_LIBUCC"  # variable with the full path of the library, if the dynamic linker does not find it

OLDEST, NEWEST = (1, 5), (2, 0)
"""The oldest supported version of UCC, and the first that is untested. Before 1.5, a small all-reduce of three or more ranks adds in an
order that differs between ranks, and so do the last bits of the sum."""

INSTALL = "install libucc1 and libucc-dev (Debian, Ubuntu) or ucc (conda-forge), or load HPC-X"

_COMPONENTS = ("cl_basic", "tl_ucp", "mc_cpu", "ec_cpu")
"""Components that collectives of CPU tensors need. UCC looks for them in the folder `ucc` beside itself, with the suffix `.so`."""

_SETTINGS = {"UCX_ERROR_SIGNALS": "", "UCX_LOG_LEVEL": "fatal", "UCC_LOG_LEVEL": "fatal"}
"""Settings for variables that the user has not set. UCX would replace faulthandler's signal handlers; and the errors that rankdeck raises
contain more than the log messages of both libraries."""


INTERFACE = "RANKDECK_INTERFACE"
"""Variable with the network interface by which this node reaches the others, if a check found it."""

HPCX = "/opt/hpcx/ucc"  # where HPC-X lies in NVIDIA's containers, if nothing has loaded it

SIGN = "ucc: "
"""The program's output begins with this, because other output of Python's start-up on a node may precede it."""

_PORTS = "/sys/class/infiniband/*/ports/*/state"  # states of the ports of InfiniBand and RoCE, such as `4: ACTIVE`


class LibraryError(RuntimeError):
    """The library can't be used: the fact, and what to do."""

    def __init__(self, fact: str, hint: str) -> None:
        super().__init__(f"{fact}: {hint}")
        self.fact, self.hint = fact, hint


class Library:
    """libucc: path of the file, what ctypes has loaded, and its version."""

    def __init__(self, path: str, functions: ctypes.CDLL, version: tuple[int, int, int]) -> None:
        self.path, self.functions, self.version = path, functions, version


def candidates(environment: Mapping[str, str], prefix: str) -> list[str]:
    """Returns names of the library to try, in order; conda installs libraries below `prefix`."""
    if environment.get(VARIABLE):
        return [environment[VARIABLE]]
    hpcx = [environment.get("HPCX_UCC_DIR") or "", HPCX]
    first, *last = (os.path.join(folder, "lib", NAME) for folder in (prefix, *filter(None, hpcx)))
    return [name for name in (first, NAME, *last) if name == NAME or os.path.exists(name)]


def load() -> Library:
    """Loads the library. Raises LibraryError: it is missing, lacks a component, or has an unsupported version."""
    for name, value in {**_SETTINGS, **network(os.environ)}.items():
        os.environ.setdefault(name, value)
    trouble = None
    for name in candidates(os.environ, sys.prefix):
        try:
            functions = ctypes.CDLL(name)
        except OSError as error:
            trouble = trouble or explain(name, str(error))
            continue
        path = _path_of(functions) or os.path.realpath(name)
        missing = missing_components(path)
        if missing:
            raise LibraryError(
                f"UCC at {path} is without its components ({', '.join(missing)} in {os.path.dirname(path)}/ucc)",
                "install libucc-dev as well, which on Debian and Ubuntu has the names by which they are found",
            )
        version = _version_of(functions)
        if not OLDEST <= version[:2] < NEWEST:
            raise LibraryError(
                f"UCC at {path} is of version {'.'.join(map(str, version))}",
                f"take {OLDEST[0]}.{OLDEST[1]} or newer, below {NEWEST[0]}.{NEWEST[1]}: {INSTALL}",
            )
        return Library(path, functions, version)
    raise trouble or LibraryError(f"there is no {NAME}", INSTALL)


def network(environment: Mapping[str, str], ports: str = _PORTS) -> dict[str, str]:
    """Returns settings that keep UCX (1.23) from interfaces that do not reach other nodes: it uses all that have an address. Empty if
    there is InfiniBand or RoCE, which UCX prefers: a list of devices would have to contain those too."""
    if not environment.get(INTERFACE) or any(_is_active(port) for port in iglob(ports)):
        return {}
    return {"UCX_NET_DEVICES": environment[INTERFACE]}


def _is_active(port: str) -> bool:
    try:
        with open(port) as file:
            return "ACTIVE" in file.read()
    except OSError:
        return False


def explain(name: str, said: str) -> LibraryError:
    if newer := re.search(r"version .(GLIBC\w*_[\d.]+). not found", said):
        return LibraryError(
            f"UCC ({name}) was built for a newer system and needs {newer[1]}", f"{INSTALL}, as built for this one"
        )
    if name == NAME and f"{NAME}: cannot open" in said:
        return LibraryError(f"there is no {NAME}", f"{INSTALL}, or let {VARIABLE} name the file")
    return LibraryError(f"UCC can't be loaded ({said})", f"let {VARIABLE} name another file, or {INSTALL}")


def missing_components(path: str) -> list[str]:
    folder = os.path.join(os.path.dirname(os.path.realpath(path)), "ucc")
    return [name for name in _COMPONENTS if not os.path.exists(os.path.join(folder, f"libucc_{name}.so"))]


def _version_of(functions: ctypes.CDLL) -> tuple[int, int, int]:
    numbers = [ctypes.c_uint() for _ in range(3)]
    functions.ucc_get_version(*map(ctypes.byref, numbers))
    return numbers[0].value, numbers[1].value, numbers[2].value


def _path_of(functions: ctypes.CDLL) -> str:
    """Returns the file of the loaded library, from the kernel's memory map; empty if unknown."""
    address = ctypes.cast(functions.ucc_get_version, ctypes.c_void_p).value or 0
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                span, *_, path = line.rstrip("\n").split(maxsplit=5)
                start, end = (int(part, 16) for part in span.split("-"))
                if start <= address < end:
                    return path
    except (OSError, ValueError):
        pass
    return ""


def _is_in_torch() -> bool:
    """Whether torch was built with UCC, and so uses its own. Checked last, because the import takes seconds."""
    try:
        import torch.distributed as dist

        return dist.is_ucc_available()
    except (ImportError, OSError):
        return False


def _main() -> int:
    try:
        found = load()
    except LibraryError as error:
        if _is_in_torch():
            return 0
        sys.stdout.write(f"{SIGN}{error.fact}\n{error.hint}\n")
        return 1
    sys.stdout.write(f"{SIGN}{found.path} {'.'.join(map(str, found.version))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
