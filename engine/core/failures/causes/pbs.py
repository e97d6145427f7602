"""Why no agent could be started on a node of a PBS job: what pbs_tmrsh says about it, by its source, and our program around it.

`detail` and `hint` continue a sentence that begins with the node's name. They may also use `{node}` and `{python}`.
"""

from __future__ import annotations

from functools import partial

from engine.core.failures.causes.cause import Cause

_task = partial(Cause, kind="connection", speaker="pbs")

CAUSES: tuple[Cause, ...] = (
    _task(
        id="S75",
        pattern=r"^pbs_tmrsh: No such file",
        detail="there is no pbs_tmrsh on this machine",
        hint='add PBS\'s commands to PATH, or set layout.transport = "ssh"',
    ),
    _task(
        id="S76",
        pattern=r"not executing under PBS|PBS jobid not in environment|cannot find PBS_NODEFILE",
        detail="rankdeck does not run in a PBS job here",
        hint="start rankdeck inside qsub -I or a job",
    ),
    _task(
        id="S77",
        pattern=r'host "[^"\n]*" is not a node in job',
        detail="it is not a node of this PBS job",
        hint="its nodes are in the file $PBS_NODEFILE",
    ),
    _task(
        id="S78",
        pattern=r"pbs_tmrsh: \S+ has not connected within (?P<time>\S+ s)",
        detail="its task has not connected within {time}",
        hint="rankdeck, its Python and $RANKDECK_HOME must be under the same paths there, and nodes must reach each other by TCP",
    ),
    _task(
        id="S79",
        pattern=r"pbs_tmrsh: (?:tm_\w+|obit)(?:\(\w+\))?: (?:host \S+ err )?(?P<reason>.{1,120})",
        detail="PBS starts no task there: {reason}",
        hint="the state of the node: pbsnodes {node}",
    ),
    _task(
        id="S80",
        pattern=r"^rankdeck can't wait for a task: (?P<reason>.{1,200})",
        detail="no task can connect to this machine: {reason}",
        hint="the key of a task is a file in $RANKDECK_HOME, else in the home: it must be possible to write there",
    ),
)
