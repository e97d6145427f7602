"""Puts runs into the queue."""

import hashlib
import os
from collections.abc import Sequence

import msgspec

from engine.client.early import MARK
from engine.client.launch import profile_text
from engine.client.sweeps.points import Point, unattended
from engine.core.errors import UsageError
from engine.core.plan.document.places import Places
from engine.core.plan.profile import Profile
from engine.core.sweeps.queue import Entry, Place, Queue, needs_of
from engine.gate import LAUNCHED
from engine.planning.make import make_plan
from engine.runs.queue.file import change_queue, wake_starter


def entry_of(profile: Profile, places: Places, *, after: str = "", cold: bool = False) -> Entry:
    """A run that waits, checked as for a launch now. `after`: the run that ends before. Raises RankdeckError: it could not be launched."""
    profile = unattended(profile, places)
    plan = make_plan(profile, LAUNCHED, places=places)
    if plan.submission is not None:
        hint = "let the batch system order jobs: layout.slurm.options = ['--dependency=afterany:JOB']"
        raise UsageError("the profile submits a job, which the queue of this machine does not start", hint=hint)
    text = profile_text(profile).decode()
    return Entry(number=0, name=profile.name, profile=text, place="", needs=needs_of(plan), after=after, cold=cold)


def entry_of_point(point: Point, parallel: int) -> Entry:
    """A run of a sweep. `parallel`: how many of them may run at once."""
    text, needs = profile_text(point.profile).decode(), needs_of(point.plan)
    swept = point.swept
    return Entry(number=0, name=point.profile.name, profile=text, place="", needs=needs, swept=swept, parallel=parallel)


def enqueue(entries: Sequence[Entry]) -> Queue:
    """Adds runs, in this folder and environment, behind all others, and has those started that may start. Returns the queue. Raises RankdeckError: it
    can't be written."""
    environment = tuple(b"%s=%s" % pair for pair in os.environb.items() if pair[0] != MARK.encode())
    place = Place(folder=os.getcwdb(), environment=environment)
    key = hashlib.sha256(msgspec.json.encode(place)).hexdigest()[:16]
    queue = change_queue(lambda now: now.added([msgspec.structs.replace(one, place=key) for one in entries], place))
    wake_starter(waits=True)
    return queue
