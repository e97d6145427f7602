"""The first half of a launch: a run's folder, its plan, and a standby that becomes its supervisor."""

import os
import shutil
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import tomli_w

from engine.client.standby import Standby
from engine.core.plan.document.places import Places
from engine.core.plan.document.site import limited
from engine.core.plan.plan import LaunchPlan, Swept
from engine.core.plan.profile import Profile, to_toml_data
from engine.gate import LAUNCHED
from engine.linux.files import replace_file
from engine.planning import make as planning
from engine.planning.site import read_site
from engine.planning.trust import of_launch, trust
from engine.runs.listing import new_run
from engine.runs.paths import RunPaths
from engine.runs.record import Submitted, place_here


class Begun(NamedTuple):
    """A run that was written down. `is_supervised`: it has a supervisor, or a submitted job will start one. `said`: what its batch system has said."""

    paths: RunPaths
    plan: LaunchPlan
    is_supervised: bool
    said: str = ""


def profile_text(profile: Profile) -> bytes:
    """A profile as its run keeps it."""
    return tomli_w.dumps(to_toml_data(profile)).encode()


def begin_launch(
    profile: Profile,
    places: Places | None = None,
    *,
    cold: bool = False,
    swept: Swept | None = None,
    run: str = "",
    after: str = "",
    own_standby: Callable[[], Standby | None] = lambda: None,
) -> Begun:
    """Makes a new run, or continues that of this job, which Slurm has put back into the queue. It imports neither asyncio nor what follows a
    run, so that ranks start sooner. `cold`: without the template of the user. `swept`: its place in a sweep. `run`: its id; empty: a new
    one. `after`: the job that must end before the job of the run starts. `own_standby`: gives the caller's, once the plan is made. Raises RankdeckError: nothing was launched; OSError: likewise, for
    example because the disk is full."""
    plan = msgspec.structs.replace(planning.make_plan(profile, LAUNCHED, places=places), swept=swept)
    text = profile_text(limited(profile, *read_site())[0])
    trust(of_launch(profile))
    if (place := place_here()) is not None and place.restarts:
        from engine.client.jobs import continue_requeued  # not needed for other runs

        if (again := continue_requeued(place, text, plan)) is not None:
            return Begun(again, plan, is_supervised=False)
    if cold:
        plan = msgspec.structs.replace(plan, linger=0.0)
    if plan.backend.device == "cuda" and all(node.transport == "local" for node in plan.nodes):
        chosen = {
            name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") if name in os.environ
        }
        plan = msgspec.structs.replace(plan, env_defaults={**plan.env_defaults, **chosen})
    paths = new_run(profile.name, run)
    try:
        replace_file(paths.profile, text)
        replace_file(paths.plan, msgspec.json.encode(plan))
    except OSError:  # a full disk
        shutil.rmtree(paths.folder, ignore_errors=True)
        raise
    if plan.submission is not None:
        return Begun(paths, plan, is_supervised=True, said=_submit(plan, paths, after))
    standby = own_standby()
    has_taken = standby is not None and standby.serves(plan) and standby.take(paths)
    if standby is not None:
        standby.drop()
    return Begun(paths, plan, is_supervised=has_taken)


def _submit(plan: LaunchPlan, paths: RunPaths, after: str) -> str:
    """Submits the job of a new run. Returns what the batch system has said. If it refuses the job, nothing of the run is left."""
    from engine.planning.batch import submit  # not needed for other runs

    assert plan.submission is not None
    try:
        taken = submit(plan, paths, after=after)
    except BaseException:
        shutil.rmtree(paths.folder, ignore_errors=True)
        raise
    submitted = Submitted(job=taken.job, at=time.time(), scheduler=plan.submission.scheduler, said=taken.said)
    replace_file(paths.job, msgspec.json.encode(submitted))
    return taken.said
