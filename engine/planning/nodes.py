"""Finds the nodes of a layout: in the profile itself, in a hostfile, or from the batch system.

Commands run without a shell and with a deadline, at which they are killed with all their children.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from engine.core.errors import CheckError, NoAnswerError
from engine.core.plan.hostfile import parse_hostfile
from engine.core.plan.layout import LayoutError, Slots, complete, groups_of, parse_nodes
from engine.core.plan.profile import Layout, PbsJob, SlurmJob
from engine.core.terminal_text import visible
from engine.gate import Permit

MAX_SIZE = 1 << 20  # largest hostfile, in bytes
MOST_SPOKEN = 4_000  # characters of what a program of a batch system says
DEADLINE = 20.0  # seconds for `squeue` or a source of node groups to answer; a busy Slurm controller needs several

_FACTS_OF_GROUPS = "https://clustershell.readthedocs.io/en/latest/config.html#node-groups"


class Nodes(NamedTuple):
    """The nodes of a layout, and the number of the Slurm job that has them; empty: none."""

    slots: tuple[Slots, ...]
    slurm_job: str = ""


def nodes_of(layout: Layout, permit: Permit) -> Nodes:
    """The nodes of a layout, at this moment.

    A number of ranks in the source overrides `layout.ranks_per_node`, except in PBS's file, which always contains one. Raises ProfileError:
    a line of the hostfile is wrong; CheckError: the source is missing, has no nodes, or names invalid nodes; NotTrustedError: the source is
    a program that may not start."""
    if layout.hostfile is not None:
        name = _short(layout.hostfile)
        return Nodes(_complete(layout, parse_hostfile(_text(name), name), name))
    if layout.job is not None:
        return Nodes(_future_slots(layout, layout.job))
    if layout.slurm is not None:
        number, names = _this_job() if layout.slurm == "current" else _other_job(str(layout.slurm), permit)
        try:
            return Nodes(parse_nodes(names, layout.ranks_per_node), number)
        except LayoutError as error:
            raise CheckError(f"layout.slurm: Slurm's list of nodes {error}", hint=error.hint) from None
    if layout.pbs is not None:
        return Nodes(_pbs_slots(layout))
    try:
        groups = {group: _group_nodes(group, permit) for group in groups_of(layout.nodes)}
        return Nodes(parse_nodes(layout.nodes, layout.ranks_per_node, groups))
    except LayoutError as error:
        raise CheckError(f"layout.nodes {error}", hint=error.hint) from None


def _complete(layout: Layout, slots: Sequence[Slots], source: str) -> tuple[Slots, ...]:
    try:
        return complete(slots, layout.ranks_per_node)
    except LayoutError as error:
        raise CheckError(f"{source} {error}", hint=error.hint) from None


def _short(file: str) -> str:
    """A path as errors tell it: relative, if it is below the current directory."""
    short = os.path.relpath(file) if os.path.isabs(file) else file
    return file if short.startswith(("../", "~")) else short


def _text(file: str) -> str:
    """The text of a hostfile; its path is relative to the current directory."""
    try:
        path = Path(os.path.expanduser(file))
        if not path.is_file():  # opening a FIFO would wait for a writer
            hint = "set layout.hostfile to a file"
            raise CheckError(f"the hostfile {file} does not exist, or is not a file", hint=hint)
        with path.open("rb") as opened:
            data = opened.read(MAX_SIZE + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no user of the name in ~name
        reason = error.strerror if isinstance(error, OSError) else error
        hint = "set layout.hostfile to a file that you can read"
        raise CheckError(f"the hostfile {file} can't be read: {reason}", hint=hint) from None
    if len(data) > MAX_SIZE:
        raise CheckError(f"{file} is too large to be a hostfile", hint="a hostfile has one line for each host")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckError(f"{file} is not UTF-8 at byte {error.start}", hint="a hostfile is plain text") from None


def _future_slots(layout: Layout, job: SlurmJob | PbsJob) -> tuple[Slots, ...]:
    """The nodes of a job that is still to be submitted: node1, node2 and so on."""
    ranks = job.ranks_per_node or layout.ranks_per_node
    if ranks == "auto":
        hint = f"set layout.{layout.system}.ranks_per_node, or use -n"
        raise CheckError("the number of ranks must be known before a job is submitted", hint=hint)
    return tuple(Slots(node=f"node{number}", ranks=ranks) for number in range(1, job.nodes + 1))


def _this_job() -> tuple[str, str]:
    """The number of the job that this process is part of, and its nodes."""
    names = os.environ.get("SLURM_JOB_NODELIST", "")
    if not names:
        fact = 'layout.slurm is "current", but rankdeck does not run in a Slurm job: SLURM_JOB_NODELIST is not set'
        raise CheckError(fact, hint="start rankdeck inside salloc or sbatch, or name a job: layout.slurm = 1234")
    if os.environ.get("SLURM_HET_SIZE", "1") != "1":
        hint = "get one allocation for all nodes: without `hetjob` and without `:` in salloc and sbatch"
        raise CheckError("this is a heterogeneous job of Slurm, which rankdeck can't use", hint=hint)
    return os.environ.get("SLURM_JOB_ID", ""), names


def _other_job(job: str, permit: Permit) -> tuple[str, str]:
    """The number of a job (a task of a job array has its own), and its nodes."""
    hint = "rankdeck runs squeue on this machine: is this a login node?"
    said = answer(["squeue", "-h", "-j", job, "-o", "%A %N"], permit, hint=hint)
    lines = [(line.split()[0], line.split()[1]) for line in said.splitlines() if len(line.split()) > 1]
    if not lines:
        raise CheckError(f"Slurm's job {job} has no nodes", hint=f"it is waiting or has ended: squeue -j {job}")
    if len(lines) > 1:  # one for each task of a job array
        raise CheckError(f"Slurm runs {len(lines)} tasks of job {job}", hint=f'name one: layout.slurm = "{job}_1"')
    number, names = lines[0]
    return number if number.isdigit() else job, names


def _pbs_slots(layout: Layout) -> tuple[Slots, ...]:
    file = os.environ.get("PBS_NODEFILE", "")
    if not file:
        fact = 'layout.pbs is "current", but rankdeck does not run in a PBS job: PBS_NODEFILE is not set'
        raise CheckError(fact, hint="start rankdeck inside qsub -I or a job")
    slots = parse_hostfile(_text(file), file)
    if layout.ranks_per_node != "auto":
        slots = tuple(Slots(node=slot.node, ranks=layout.ranks_per_node) for slot in slots)
    return _complete(layout, slots, file)


def _group_nodes(group: str, permit: Permit) -> tuple[str, ...]:
    """The nodes of a group, from ClusterShell's command. Calling its library would run the site's shell commands without a deadline."""
    # Where ClusterShell looks, nearest first, except `sys.prefix` and `~/.local`: there pip installs example groups.
    own = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "clustershell")
    folders = (os.environ.get("CLUSTERSHELL_CFGDIR", ""), own, "/etc/clustershell")
    paths = (Path(folder, "groups.conf") for folder in folders if folder)
    config = next((path for path in paths if path.is_file()), None)
    if config is None:
        raise CheckError(f"there is no group {group}: ClusterShell has no groups.conf here", hint=_FACTS_OF_GROUPS)
    command = [sys.executable, "-P", "-m", "ClusterShell.CLI.Nodeset", f"--groupsconf={config}", "-e", group]
    hint = f"{config} defines the groups"
    names = tuple(answer(command, permit, hint=hint).split())
    if not names:
        raise CheckError(f"the group {group} has no nodes", hint=hint)
    return names


def answer(
    command: Sequence[str],
    permit: Permit,
    *,
    hint: str,
    whole: bool = False,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The output of a command. `hint`: the next step if it fails. `whole`: what it prints as errors follows, and is told whole if it fails.
    `environment`: environment of the command; None: that of this process. Raises CheckError: the command is missing, fails, takes too
    long, or may not start (NotTrustedError)."""
    status, out, complaint = run_quickly(command, permit, hint=hint, limit=DEADLINE, environment=environment)
    if status != 0:
        text = complaint.decode(errors="replace")
        told = spoken(text, command[0]) if whole else text.strip().rpartition("\n")[2]
        raise CheckError(f"{_name(command)} fails: {told or f'exit status {status}'}", hint=hint)
    return (out + complaint if whole else out).decode(errors="replace")


def spoken(text: str, program: str) -> str:
    """The messages of a batch system's program to people, such as those of `job_submit.lua`, on one line."""
    lines = re.sub(rf"(?m)^{re.escape(program)}: (?:error: |fatal: )?", "", text).splitlines()
    return visible(" / ".join(line.strip() for line in lines if line.strip())[:MOST_SPOKEN])


def _name(command: Sequence[str]) -> str:
    return "ClusterShell" if command[0] == sys.executable else command[0]


def run_quickly(
    command: Sequence[str], permit: Permit, *, hint: str, limit: float, environment: Mapping[str, str] | None = None
) -> tuple[int, bytes, bytes]:
    """The exit status of a command, its output and its errors. `hint`: the next step if it does not end. `limit`: seconds that it may take.
    `environment`: environment of the command; None: that of this process. Raises CheckError: the command is missing, takes too long, or
    may not start (NotTrustedError)."""
    name = _name(command)
    try:
        process = subprocess.Popen(
            command,
            executable=permit.program(command[0]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=permit.cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise CheckError(f"{name} can't be run: {error.strerror}", hint=hint) from None
    with process:
        try:
            out, complaint = process.communicate(timeout=limit)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the child of a site's wrapper script holds the pipes too
            if isinstance(error, subprocess.TimeoutExpired):
                raise NoAnswerError(f"{name} does not answer within {limit:g} s", hint=hint) from None
            raise
    return process.returncode, out, complaint
