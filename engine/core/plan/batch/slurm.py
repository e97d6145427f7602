"""Slurm: the job that a profile describes, and what `squeue` and `sinfo` tell."""

import re
import shlex
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

import msgspec

from engine.core.plan.batch.job import ACTIVE, LOG, SCRIPT, QueuedJob, Submission, words_in
from engine.core.plan.document.places import Places
from engine.core.plan.layout import MAX_NODES
from engine.core.plan.profile import SlurmJob
from engine.core.tables import read_table

HERE = ("layout", "slurm")

_SLURM_JOB = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,9})?\Z")
"""A job or a task of a job array. `squeue` can't mistake it for an option."""

_SHORT_OPTIONS = {"-a": "array", "-N": "nodes", "-W": "wait", "-o": "output"}

FORMAT = "%A|%T|%S|%N|%r"
"""For `squeue --format`: number, state, expected or real start, nodes, reason. The reason is last, because it may be any text."""


class _Reason(NamedTuple):
    """A row of `slurm_reasons.tsv`: why a job waits, and what the user can do; empty: nothing."""

    reason: str
    meaning: str
    helps: str = ""


@cache
def _reasons() -> dict[str, _Reason]:
    return {row.reason: row for row in read_table(__package__, "slurm_reasons", _Reason)}


# --- the job of a profile ------------------------------------------------------------------------------------------------


def is_slurm_job(job: int | str) -> bool:
    """Whether a value of `layout.slurm` names a job."""
    if isinstance(job, int):
        return 0 < job < 10**10
    return job == "current" or _SLURM_JOB.match(job) is not None


def check(job: SlurmJob, places: Places) -> None:
    """Raises ProfileError: Slurm does not take the job, or rankdeck could not run in it."""
    places.check_range((*HERE, "spares"), job.spares, 0, MAX_NODES - job.nodes)
    for word in job.options:
        name = _SHORT_OPTIONS.get(word[:2], "") or word.partition("=")[0].removeprefix("--")
        if word.startswith("-") and (instead := words_in("refused_by_slurm").get(name)):
            raise places.error((*HERE, "options"), f"{word} can't be used", hint=instead)


def submission_of(job: SlurmJob, ranks: int, *, name: str, command: Sequence[str]) -> Submission:
    """The job of a profile; the arguments are those of `submission_of` of the package."""
    given = {"partition": job.partition, "time": job.time, "gres": job.gres, "account": job.account}
    return Submission(
        options=(
            f"--job-name={name}",
            f"--nodes={job.nodes + job.spares}",
            f"--ntasks-per-node={ranks}",
            *(f"--{key}={value}" for key, value in given.items() if value),
            "--requeue" if "requeue" in (job.on_preempt, job.on_node_fail) else "--no-requeue",
            *(["--no-kill"] if job.spares else []),
            *([f"--signal=B:USR1@{job.warn}"] if job.warn else []),
            *job.options,
        ),
        script=f'#!/bin/sh\n# Runs a run of rankdeck, whose folder is the first argument, to its end.\nexec {shlex.join(command)} "$1"\n',
    )


def argv(submission: Submission, folder: str, after: str) -> list[str]:
    """The command line of sbatch; the arguments are those of `submit_argv`."""
    where = [f"--output={folder.replace('%', '%%')}/{LOG}", "--open-mode=append"]  # `%` begins a pattern
    where += [f"--dependency=afterany:{after}"] if after else []
    return ["sbatch", "--parsable", *submission.options, *where, f"{folder}/{SCRIPT}", folder]


# --- the queue -----------------------------------------------------------------------------------------------------------


def parse_queue(text: str) -> dict[str, QueuedJob]:
    """The jobs in the output of `squeue --noheader --format FORMAT`, by number. Lines of another form are left out."""
    found = {}
    for line in text.splitlines():
        fields = line.split("|", 4)
        if len(fields) == 5 and fields[0].isdigit():
            job, state, start, nodes, reason = fields
            known = "" if start in ("N/A", "Unknown") else start.replace("T", " ")[:16]
            words, helps = _reason_words(job, reason)
            found[job] = QueuedJob(job=job, state=state, start=known, nodes=nodes, reason=words, help=helps)
    return found


def _reason_words(job: str, reason: str) -> tuple[str, str]:
    """Why Slurm lets a job wait, and what the user can do; empty: nothing."""
    whole = reason.strip()
    if whole.startswith("(") and whole.endswith(")"):
        whole = whole[1:-1]
    name, known = whole.split(",")[0], _reasons()
    fits = next((row for pattern, row in known.items() if fnmatchcase(name, pattern)), None)
    _, meaning, helps = known.get(name) or fits or ("", "", "")
    return (f"{meaning} ({whole})" if meaning else whole), helps.format(job=job)


ENDING_FORMAT = "State:.|,PreemptTime:.|,Requeue:.|,Reason:.|"  # for `squeue --Format`, where a job has got SIGTERM

LIMIT_FORMAT = "%e|%l|%P"
LIMIT_VARIABLES = {"SLURM_TIME_FORMAT": "%s"}
"""For `squeue --format` and its environment: the end of a job in seconds since the epoch, its time limit, and its partition."""


def ending_state(text: str) -> tuple[str, bool] | None:
    """The state that a job will end in, from the output of `squeue --noheader --states=all --Format ENDING_FORMAT` about it, empty if that
    is not known yet, and whether it may begin again; None: the job goes on, and somebody has only signalled it."""
    state, preempted, requeue, reason, *_ = [*text.split("\n", 1)[0].split("|"), "", "", ""]
    if preempted not in ("", "N/A"):  # it keeps its nodes for its GraceTime
        return "PREEMPTED", requeue == "1"
    if state in ACTIVE and state != "COMPLETING":
        return None
    return "TIMEOUT" if reason == "TimeLimit" else "" if state == "COMPLETING" else state, False


# --- nodes of the cluster ------------------------------------------------------------------------------------------------

INCLUDE = re.compile(r"(?im)^\s*include\s+(\S+)")  # a line of slurm.conf that names another file
_NODE = re.compile(r"(?im)^\s*NodeName=(\S+)([^\n#]*)")
_NODE_HOST = re.compile(r"(?i)\bNode(?:Hostname|Addr)=(\S+)")
_NODE_WORD = re.compile(r"(?:[^,\[]|\[[^\]]*\]?)+")
_RANGES = re.compile(r"\[[^\]]*\]")
_PORT = re.compile(r"(?im)^\s*SlurmdPort=(\d+)")


def may_be_node(conf: str, hosts: Iterable[str]) -> bool:
    """Whether a cluster may start jobs on a machine. `conf`: text of slurm.conf. `hosts`: names and addresses of the machine; a name that differs from
    a node's only in its numbers counts. A text without nodes leaves it open: True."""
    words: list[str] = []
    for name, rest in _NODE.findall(conf.replace("\\\n", " ")):
        words += [name, *_NODE_HOST.findall(rest)]
    patterns = [_RANGES.split(one) for word in words for one in _NODE_WORD.findall(word)]
    nodes = re.compile("|".join(r"\w+".join(map(re.escape, pieces)) for pieces in patterns), re.IGNORECASE)
    return not words or any(nodes.fullmatch(host) for host in hosts)


def slurmd_port(conf: str) -> int:
    """The port of a cluster's nodes."""
    found = _PORT.search(conf)
    return int(found[1]) if found else 6818


# --- partitions ----------------------------------------------------------------------------------------------------------

FIELDS = ("Partition:.|", "Available:|", "Time:|", "StateLong:|", "CPUsState:|", "Gres:|", "GresUsed:|", "NodeHost:|")
"""For `sinfo --Node --Format`: one line for each node of each partition."""

_FREE, _PARTLY = "idle", "mixed"
_SUFFIXES = "~#%"  # signs behind the state of a node that Slurm starts when a job needs it; others: it answers no job
_GPUS = re.compile(r"\bgpu(?::[^:,]+)?:(\d+)")
_BINDING = re.compile(r"\([^)]*\)")


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, with the GPUs and CPUs of all its nodes, and those that new jobs may get (`free_…`)."""

    name: str
    default: bool  # whether jobs without a partition go there
    up: bool  # whether it starts jobs
    time: str  # longest time of a job, as Slurm writes it
    nodes: int = 0
    free: int = 0  # nodes without any job
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
    default = "; the default" if one.default else ""
    return f"{'up' if one.up else 'down'}, limit {one.time}; free: {', '.join(free)}{default}"


def soonest_first(partitions: Iterable[Partition]) -> list[Partition]:
    """Partitions in the order in which jobs there may start soon: those that start jobs, by their free nodes and GPUs."""
    return sorted(partitions, key=lambda one: (not one.up, not one.free, -one.free_gpus, -one.free))
