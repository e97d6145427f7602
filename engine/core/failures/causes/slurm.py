"""Why no agent could be started on a node of a Slurm job: what srun and slurmstepd say about it.

`detail` and `hint` continue a sentence that begins with the node's name. They may also use `{node}`, `{python}` and `{job}`.
"""

from __future__ import annotations

from functools import partial

from engine.core.failures.causes.cause import Cause

_step = partial(Cause, kind="connection", speaker="slurm")

CAUSES: tuple[Cause, ...] = (
    # --- the job
    _step(
        id="S60",
        pattern=r"Invalid job id specified|Slurm job \d+ has expired|Job/step already completing or completed",
        detail="Slurm's job {job} has ended",
        hint="get another allocation and launch again; how it ended: sacct -j {job}",
        final=True,
    ),
    _step(
        id="S61",
        pattern=r"Job is pending execution",
        detail="Slurm's job {job} still waits in the queue",
        hint="when it is expected to start: squeue --start -j {job}",
        final=True,  # a run begins only in a job that has nodes, so Slurm has taken them away
    ),
    _step(
        id="S62",
        pattern=r"Requested node configuration is not available|Invalid node name specified|Node count specification invalid",
        detail="it is not a node of Slurm's job {job}",
        hint="its nodes: squeue -j {job} -o %N",
        gone=True,
    ),
    _step(
        id="S63",
        pattern=r"Access/permission denied|Invalid account",
        detail="Slurm's job {job} belongs to another user",
        hint="use one of your own: squeue --me",
    ),
    _step(
        id="S64",
        pattern=r"\bSTEP \S+ ON \S+ CANCELLED AT \S+(?P<why> DUE TO [A-Z ]+\b)?",
        detail="Slurm cancelled the step there {why}",
        hint="what happened to it: sacct -j {job}",
    ),
    # --- Slurm itself
    _step(
        id="S65",
        pattern=r"Unable to contact slurm controller|Zero Bytes were transmitted or received|slurm_receive_msg.*: Connection refused",
        detail="Slurm's controller does not answer",
        hint="try it by hand: scontrol ping",
        retry=True,
    ),
    _step(
        id="S66",
        pattern=r"Task launch for \S+ failed on node \S+: (?P<why>.+)|Unable to create step for job \d+: (?P<reason>.+)",
        detail="Slurm starts no step there: {why}{reason}",
        hint="the state of the node: sinfo -N -l -n {node}",
    ),
    _step(
        id="S67",
        pattern=r"(?:unrecognized|invalid) option (?:-- )?'(?P<option>[^'\n]+)'",
        detail="srun does not know {option}",
        hint="rankdeck needs Slurm 20.11 or later for this; or set layout.transport to ssh",
    ),
    _step(
        id="S68",
        pattern=r"Unable to process configuration file|cannot stat file (?P<file>\S+?): .*|[Mm]unge encode failed: (?P<why>.+)",
        detail="Slurm's commands don't work on this machine",
        hint="try it by hand: sinfo",
    ),
    # --- the command on the node
    _step(
        id="S69",
        pattern=r"execve\(\): .+: No such file or directory",
        detail="there is no {python} there",
        hint="set launch.python to the path of one, or add it to PATH in launch.setup",
    ),
    _step(
        id="S70",
        pattern=r"execve\(\): .+: Permission denied",
        detail="{python} is not executable there",
        hint="set launch.python to one that you can run",
    ),
)
