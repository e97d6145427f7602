"""Jobs of PBS: what `qstat -f -F json` tells of them, in the words of squeue."""

from __future__ import annotations

import msgspec

from engine.core.views.queue import QueuedJob

_STATES = {"Q": "PENDING", "W": "PENDING", "T": "PENDING", "H": "PENDING", "R": "RUNNING", "S": "SUSPENDED", "U": "SUSPENDED", "E": "COMPLETING", "B": "RUNNING"}  # fmt: skip
"""Of a job that has not ended, by the letter of PBS: queued, waits, in transit, held, runs, suspended (twice), exits, an array has begun."""

_ENDS = {0: "COMPLETED", 271: "CANCELLED", -29: "TIMEOUT", -27: "OUT_OF_MEMORY"}
"""How a job has ended, by `Exit_status`: 256 and a signal, or the number of what the mother superior has killed it for."""


_Text = str | int | float
"""qstat writes a text that looks like a number as one."""


class _Estimated(msgspec.Struct):
    start_time: _Text = ""


class _Attributes(msgspec.Struct):
    job_state: str = ""
    comment: _Text = ""
    exec_host: str = ""
    estimated: _Estimated = msgspec.field(default_factory=_Estimated)
    status: int | None = msgspec.field(default=None, name="Exit_status")


class _Answer(msgspec.Struct):
    jobs: dict[str, _Attributes] = msgspec.field(default_factory=dict, name="Jobs")


def parse_jobs(text: bytes) -> dict[str, QueuedJob]:
    """The jobs in the output of `qstat -x -f -F json`, by number. What is no UTF-8 in it is replaced. Raises msgspec.MsgspecError if it is something else."""
    found = msgspec.json.decode(text.decode(errors="replace"), type=_Answer, strict=False).jobs
    return {number: _job(number, attributes) for number, attributes in found.items()}


def _job(number: str, found: _Attributes) -> QueuedJob:
    held = "it is held: qrls releases it; " if found.job_state == "H" else ""
    hosts = ",".join(dict.fromkeys(part.partition("/")[0] for part in found.exec_host.split("+")))
    state = _STATES.get(found.job_state, "")
    if not state:
        state = "ENDED" if found.status is None else _ENDS.get(found.status, "FAILED")
    return QueuedJob(
        job=number,
        state=state,
        start=str(found.estimated.start_time),
        nodes=hosts,
        reason=f"{held}{found.comment}".removesuffix("; "),
    )
