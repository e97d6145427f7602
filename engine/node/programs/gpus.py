"""Utilisation and memory of the GPUs of a node's ranks: `python -I -S gpus.py LOCAL_RANK… SOCKET`, in the environment of the ranks.

The agent starts it with a socket that preserves messages. It sends samples of NVIDIA's management library (NVML) as JSON: for each
local rank `[utilisation, used, total]` in percent and bytes, null if unknown. Without arguments it prints `[UUID, whether it is used]` of each GPU. A call into a broken driver may never return, or may end the
process. So this is a separate process. It exits if there is no NVML, and with its agent. Standard library only; Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import select
import socket
import sys
from typing import Any

BUSY = 0.1  # a GPU with more than this part of its memory used is used: the driver does not show processes of other containers
PERIOD = 2.0  # seconds between two samples; NVML's own values are averages of the last second or less


class Utilisation(ctypes.Structure):
    """nvmlUtilization_t: percent of time in which a kernel ran, and in which memory was read or written."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """NVIDIA's management library. Raises OSError if it is missing or finds no driver."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        if not self._ask("nvmlInit_v2"):
            raise OSError("it finds no driver")
        count = ctypes.c_uint()
        self._ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.count = count.value

    def _ask(self, name: str, *arguments: Any) -> bool:
        """Calls a function. Returns whether it exists and has succeeded."""
        function = getattr(self._library, name, None)
        return function is not None and function(*arguments) == 0

    def _handle(self, device: str) -> ctypes.c_void_p | None:
        """Returns NVML's handle of an entry of CUDA_VISIBLE_DEVICES: a number, or `GPU-…` or `MIG-…`."""
        handle = ctypes.c_void_p()
        if not device.isdecimal():
            found = self._ask("nvmlDeviceGetHandleByUUID", os.fsencode(device), ctypes.byref(handle))
        else:
            found = int(device) < self.count and self._ask(
                "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(device)), ctypes.byref(handle)
            )
        return handle if found else None

    def are_alike(self) -> bool:
        """Whether all GPUs have the same model. Otherwise CUDA numbers them differently by default: the fastest first."""
        names = set()
        for index in range(self.count):
            name = ctypes.create_string_buffer(96)
            if self._ask("nvmlDeviceGetName", self._handle(str(index)), name, ctypes.c_uint(len(name))):
                names.add(name.value)
        return len(names) <= 1

    def use(self, device: str) -> list[int | None]:
        """Returns utilisation, and used and total bytes, of a device. A device that has failed has no handle."""
        handle, rates, memory = self._handle(device), Utilisation(), Memory()
        if handle is None:
            return [None, None, None]
        percent = rates.gpu if self._ask("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates)) else None
        is_known = self._ask("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return [percent, memory.used, memory.total] if is_known else [percent, None, None]

    def state(self, number: int) -> tuple[str, bool]:
        """Returns the UUID of a GPU, and whether a process uses it."""
        handle, uuid, processes = self._handle(str(number)), ctypes.create_string_buffer(96), ctypes.c_uint()
        if handle is None or not self._ask("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(len(uuid))):
            return "", True  # it has failed
        names = (f"nvmlDeviceGetComputeRunningProcesses{version}" for version in ("_v3", "_v2", ""))
        newest = next((name for name in names if hasattr(self._library, name)), "")
        self._ask(newest, handle, ctypes.byref(processes), None)  # only counts
        _, used, total = self.use(str(number))
        return uuid.value.decode(), processes.value > 0 or (used or 0) > BUSY * (total or 0)


def device_of(local_rank: int, visible: str | None) -> str:
    """Returns CUDA's name of the device `cuda:LOCAL_RANK`; empty if there is none. `local_rank`: its number. `visible`:
    CUDA_VISIBLE_DEVICES. CUDA ignores everything from the first invalid entry on."""
    if visible is None:
        return str(local_rank)
    names = (name.strip() for name in visible.split(","))
    devices = list(itertools.takewhile(lambda name: name.isdecimal() or name.startswith(("GPU-", "MIG-")), names))
    return devices[local_rank] if local_rank < len(devices) else ""


def watch(local_ranks: list[int], wire: socket.socket) -> None:
    """Sends a sample every `PERIOD`. Returns when the agent has gone; raises OSError if there is no NVML."""
    nvml = Nvml()
    devices = [device_of(local_rank, os.environ.get("CUDA_VISIBLE_DEVICES")) for local_rank in local_ranks]
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and not nvml.are_alike():
        devices = ["" if device.isdecimal() else device for device in devices]
    told_to_end = select.poll()
    told_to_end.register(wire, select.POLLIN)
    is_open = True
    while is_open:
        wire.send(json.dumps([nvml.use(device) for device in devices]).encode())
        is_open = not told_to_end.poll(PERIOD * 1000)


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        if sys.argv[1:]:
            *wanted, descriptor = map(int, sys.argv[1:])
            watch(wanted, socket.socket(fileno=descriptor))
        else:
            found = Nvml()
            sys.stdout.write(json.dumps([found.state(number) for number in range(found.count)]))
