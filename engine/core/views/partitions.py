"""Partitions of Slurm: what `sinfo` tells of their nodes, and how much of them is free."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

FIELDS = ("Partition:.|", "Available:|", "Time:|", "StateLong:|", "CPUsState:|", "Gres:|", "GresUsed:|", "NodeHost:|")
"""For `sinfo --Node --Format`: one line for each node of each partition."""

_FREE, _PARTLY = "idle", "mixed"
_SUFFIXES = "~#%"
"""Signs after the state of a node that Slurm starts when a job needs it. Others mean that it answers no job."""

_GPUS = re.compile(r"\bgpu(?::[^:,]+)?:(\d+)")
_BINDING = re.compile(r"\([^)]*\)")


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition.

    Args:
        default: whether jobs without a partition go there.
        up: whether it starts jobs.
        time: longest time of a job, as Slurm writes it.
        nodes, free: all nodes, and those without any job.
        gpus, free_gpus, cpus, free_cpus: of all nodes, and what new jobs may get.
    """

    name: str
    default: bool
    up: bool
    time: str
    nodes: int = 0
    free: int = 0
    gpus: int = 0
    free_gpus: int = 0
    cpus: int = 0
    free_cpus: int = 0


def parse_partitions(text: str) -> list[Partition]:
    """The partitions in the output of `sinfo --noheader --Node --Format FIELDS`, in its order. Lines of another form are left out."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != len(FIELDS) + 1:
            continue
        partition, available, time, state, cpus, gres, used, _node = fields[:-1]
        counts = cpus.split("/")  # allocated, idle, other, all
        if len(counts) != 4 or not all(map(str.isdigit, counts)):
            continue
        name = partition.removesuffix("*")
        one = found.get(name) or Partition(name=name, default=partition.endswith("*"), up=available == "up", time=time)
        gpus, plain = _gpus(gres), state.rstrip(_SUFFIXES)
        is_usable = plain in (_FREE, _PARTLY)
        found[name] = msgspec.structs.replace(
            one,
            nodes=one.nodes + 1,
            free=one.free + (plain == _FREE),
            gpus=one.gpus + gpus,
            free_gpus=one.free_gpus + (max(gpus - _gpus(used), 0) if is_usable else 0),
            cpus=one.cpus + int(counts[3]),
            free_cpus=one.free_cpus + (int(counts[1]) if is_usable else 0),
        )
    return list(found.values())


def _gpus(gres: str) -> int:
    """GPUs in a list of generic resources: `gpu:a100:4(S:0-1),shard:8`."""
    return sum(map(int, _GPUS.findall(_BINDING.sub("", gres))))


def partition_rows(partitions: Iterable[Partition]) -> list[tuple[str, ...]]:
    """Partitions as a table, with its header."""
    rows: list[tuple[str, ...]] = [("PARTITION", "STATE", "TIME LIMIT", "FREE NODES", "FREE GPUS", "FREE CPUS")]
    for one in partitions:
        name, gpus = one.name + (" (default)" if one.default else ""), f"{one.free_gpus} of {one.gpus}"
        nodes, cpus = f"{one.free} of {one.nodes}", f"{one.free_cpus} of {one.cpus}"
        rows.append((name, "up" if one.up else "down", one.time, nodes, gpus if one.gpus else "-", cpus))
    return rows


def partition_words(one: Partition) -> str:
    """A partition in words, for lists: `up, limit 4:00:00; free: 2 of 4 nodes, 8 of 16 GPUs`."""
    free = [f"{one.free} of {one.nodes} nodes", *([f"{one.free_gpus} of {one.gpus} GPUs"] if one.gpus else [])]
    free += [f"{one.free_cpus} of {one.cpus} CPUs"]
    return f"{'up' if one.up else 'down'}, limit {one.time}; free: {', '.join(free)}" + (
        "; the default" if one.default else ""
    )


def soonest_first(partitions: Iterable[Partition]) -> list[Partition]:
    """Partitions in the order in which jobs there may start soon: those that start jobs, by their free nodes and GPUs."""
    return sorted(partitions, key=lambda one: (not one.up, not one.free, -one.free_gpus, -one.free))
