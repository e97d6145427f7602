"""Looks for the checkpoints of an attempt whose ranks and agents were killed together: by files, and by what the journal says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from engine.core.metrics.progress import RankProgress
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.rank import rank_argv
from engine.core.run.events import CheckpointsFound, Found
from engine.core.run.state import Alive, Done, Gone, RunState
from engine.core.views.saved import found_event
from engine.installed import ROOT
from engine.runs.paths import RunPaths
from engine.runs.replay import plan_now

PROGRAM = ROOT / "engine" / "node" / "programs" / "checkpoints.py"  # agents run it too
LOOK_TIME = 5.0  # Seconds for a look. After it, nothing is known: a file server may hang.


def find_saved(
    paths: RunPaths, plan: LaunchPlan, state: RunState, progress: Sequence[RankProgress]
) -> CheckpointsFound | None:
    """The event that tells what the attempt has left; a torn checkpoint is set aside if the profile says so. None: no rank has run, or the
    look fails. `plan`: as it was launched. `state`: the newest; the ranks and agents of its attempt are gone."""
    if not any(isinstance(rank, Alive | Done | Gone) for rank in state.ranks):
        return None
    plan, ended = plan_now(plan, state), _last_sign(paths, state)
    question = {
        "places": {
            "folder": plan.workdir,
            "checkpoints": str(paths.checkpoints),
            "argv": rank_argv(plan, "", plan.places[0]),
            "begun": state.attempt_since,
            "seen": state.folders,
        },
        "written": (),
        "ended": ended,
        "killed": any(not isinstance(rank, Done) or rank.status < 0 for rank in state.ranks),
        "set_aside": plan.launch.on_torn == "set-aside",
    }
    try:
        argv, given = [sys.executable, "-I", "-S", str(PROGRAM)], msgspec.json.encode(question)
        done = subprocess.run(argv, input=given, capture_output=True, timeout=LOOK_TIME, check=True)
        found = msgspec.json.decode(done.stdout, type=Found)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        return None
    return found_event(msgspec.structs.replace(found, told_at=state.told_at), state, progress, ended)


def _last_sign(paths: RunPaths, state: RunState) -> float:
    """When the ranks lived last, as far as is known: seconds since the epoch."""
    ends = [rank.at for rank in state.ranks if isinstance(rank, Done | Gone)]
    if len(ends) == len(state.ranks):
        return max(ends)
    head = state.nodes[0]
    return head.since if head.link in ("down", "given-up") else os.stat(paths.series).st_mtime
