"""Launches commands on the nodes of a Slurm job with `srun`, which needs no ssh: every command is a step of the job.

The steps share all that the job has on the node, so that none waits for another, and none takes anything away from the ranks.
"""

import os
import re
from collections.abc import Sequence

from engine.core.failures.ssh import EXIT_LAUNCHER
from engine.core.plan.plan import Reach
from engine.launchers.setup import with_setup

OPTIONS = (
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--mem=0",  # all of the job's memory on the node
    "--cpu-bind=none",  # all cores of the job, which the ranks share
    "--mpi=none",  # ranks would take the variables of PMIx for their own launcher's
    "--unbuffered",  # otherwise slurmstepd waits for a line feed before it sends anything on
    "--export=ALL",
    "--chdir=/",  # this process's folder may not exist there
    "--job-name=rankdeck",
)
"""Options of every step. They override the variables that Slurm sets in a job for the steps that its script starts."""

_OF_THE_JOB = (
    *("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES"),
    *("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_MEM_BIND", "SLURM_HINT", "SLURM_EXACT"),
    *("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_CPUS_PER_GPU", "SLURM_THREADS_PER_CORE", "SLURM_NCORES_PER_SOCKET"),
    *("SLURM_DISTRIBUTION", "SLURM_ARBITRARY_NODELIST", "SLURM_HOSTFILE", "SLURM_SPREAD_JOB", "SLURM_TIMELIMIT"),
    *("SLURM_LABELIO", "SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_EXCLUSIVE", "SLURM_HET_SIZE"),
)  # fmt: skip
"""Variables that srun reads and no option overrides: they would ask for less than the job has, or for another output. The ranks get them back, by `--export`."""

_PLAIN = re.compile(r"[A-Za-z0-9_.:+-]+")  # a value that `--export` takes as it is
COMMAND = ("env", *(f"-u{name}" for name in _OF_THE_JOB), f"SLURM_EXIT_ERROR={EXIT_LAUNCHER}", "srun", *OPTIONS)


def argv(node: str, command: Sequence[str], reach: Reach) -> list[str]:
    """The command line of a step on one node of the job `reach.slurm_job`."""
    where = [f"--jobid={reach.slurm_job}", f"--nodelist={node}"]
    if own := [f",{name}={os.environ[name]}" for name in _OF_THE_JOB if _PLAIN.fullmatch(os.environ.get(name, ""))]:
        where.append(f"--export=ALL{''.join(own)}")
    if name := os.environ.get("SLURM_JOB_NAME"):  # ranks see that of their step
        where.append(f"--job-name={name}")
    return [*COMMAND, *where, "--", *with_setup(reach.setup, command)]
