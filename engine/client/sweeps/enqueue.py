"""Puts runs into the queue."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.client.launch import profile_text
from engine.core.errors import UsageError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile
from engine.core.sweeps.queue import Entry, Place, Queue, needs_of
from engine.linux.processes import MARK
from engine.runs.queue.file import change_queue, wake_starter


def entry_of(profile: Profile, plan: LaunchPlan, **facts: Any) -> Entry:
    """A run that waits. `plan`: that of the profile now. `facts`: other fields. Raises UsageError: the plan submits a job."""
    if plan.submission is not None:
        hint = "the batch system orders jobs: layout.slurm.options = ['--dependency=afterany:JOB']"
        raise UsageError("the profile submits a job, and the queue of this machine starts none", hint=hint)
    text = profile_text(profile).decode()
    return Entry(number=0, name=profile.name, profile=text, place="", needs=needs_of(plan), **facts)


def enqueue(entries: Sequence[Entry]) -> Queue:
    """Adds runs, in this folder and environment, behind all others, and has those started that may start. Returns the queue. Raises RankdeckError: it
    can't be written."""
    environment = tuple(b"%s=%s" % pair for pair in os.environb.items() if pair[0] != MARK.encode())
    place = Place(folder=os.getcwdb(), environment=environment)
    key = hashlib.sha256(msgspec.json.encode(place)).hexdigest()[:16]
    queue = change_queue(lambda now: now.added([msgspec.structs.replace(one, place=key) for one in entries], place))
    wake_starter(waits=True)
    return queue
