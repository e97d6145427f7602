"""Launches a profile and follows its run."""

from __future__ import annotations

import asyncio

import click
import msgspec

from engine.client.engine import LocalEngine
from engine.client.run import LocalRun
from engine.commands.output import warn
from engine.core.plan.key_places import Places
from engine.core.plan.profile import Profile
from engine.core.settings import QUIET
from engine.runs.listing import find_run
from engine.runs.record import read_plan
from engine.runs.settings import read_settings


def follow_launch(profile: Profile, places: Places, *, detach: bool, cold: bool, as_json: bool) -> int:
    """Starts a run, prints its id and its warnings, and then the output of its ranks.

    Args:
        profile: what to launch.
        places: of its keys, for errors.
        detach: return as soon as it has started.
        cold: without a standby, before or after it.
        as_json: print the id as JSON.

    Returns:
        The exit status: 0 if detached, else that of the first rank that failed, or 128 + n for signal n.
    """
    notify = QUIET if detach else read_settings()[0].notify
    run = asyncio.run(LocalEngine(lingers=not cold).launch(profile, places))
    click.echo(msgspec.json.encode({"run": run}).decode() if as_json else run)
    warn(read_plan(find_run(run)))
    if detach:
        return 0
    from engine.commands.follow import watch

    return asyncio.run(watch(LocalRun(find_run(run)), notify=notify))
