"""Launches a profile and follows its run."""

import os
import time
from pathlib import Path

import click
import msgspec

from engine.client.early import end_early
from engine.client.launch import begin_launch, profile_text
from engine.client.starting import start_supervisor
from engine.commands.arguments import AFTER, COLD, DETACH, JSON, PROFILE, SET, TRUST, permit_to_run, read_given
from engine.commands.output import narrate, warn
from engine.core.plan.document.places import Places
from engine.core.plan.profile import Profile
from engine.core.run.state import ENDED_WORDS
from engine.core.settings import QUIET
from engine.gate import LAUNCHED
from engine.planning.make import make_plan
from engine.runs.listing import find_run
from engine.runs.paths import RunPaths, runs_folder
from engine.runs.record import read_summary
from engine.runs.settings import read_settings

END_PERIOD = 1.0  # seconds between two looks whether a run has ended, by its files


@click.command()
@PROFILE
@SET
@TRUST
@DETACH
@AFTER
@COLD
@JSON
@click.pass_context
def launch(
    ctx: click.Context,
    profile: str,
    *,
    overrides: tuple[str, ...],
    trusts: bool,
    detach: bool,
    after: str | None,
    cold: bool,
    as_json: bool,
) -> None:
    """Start a run and print the output of its ranks.

    A profile in ./.rankdeck or in a folder of other people asks for your consent if you launch it by name, not if you give its path. The
    exit status is that of the first rank that failed, or 128 + n for signal n. Ctrl-C asks whether to detach or to stop; without a
    terminal it stops the run.
    """
    given = read_given(profile, overrides)
    permit_to_run(given, trusts=trusts)
    if after is not None:
        ctx.exit(launch_later(given.profile, given.places, after, cold=cold, as_json=as_json))
    ctx.exit(follow_launch(given.profile, given.places, detach=detach, cold=cold, as_json=as_json))


def follow_launch(
    profile: Profile, places: Places, *, detach: bool, cold: bool, as_json: bool, stdin: bool = False
) -> int:
    """Starts a run, prints its id and its warnings, and then the output of its ranks. `cold`: without the template of the user.

    Returns the exit status: 0 if detached, else that of the first rank that failed, or 128 + n for signal n.
    """
    claimed = None
    if "SLURM_STEP_ID" in os.environ:
        from engine.client.steps import claim, claim_file, name_run  # not needed elsewhere

        claimed = claim_file(profile_text(profile))
        if claimed is not None and not claim(claimed):
            end_early()
            return _wait_for_task(claimed, detach=detach)
    notify = QUIET if detach else read_settings()[0].notify
    rank_input = None
    if stdin:
        from engine.commands.rank_input import RankInput

        rank_input = RankInput()
        rank = msgspec.structs.replace(profile.rank, wrap=(*rank_input.wrap, *profile.rank.wrap))
        profile = msgspec.structs.replace(profile, rank=rank)
    started = "-"
    try:
        begun = begin_launch(profile, places, cold=cold)
        if begun.is_supervised:
            end_early()
        else:
            start_supervisor(begun.paths)
        started = begun.paths.run
    finally:
        if claimed is not None:
            name_run(claimed, started)
    click.echo(msgspec.json.encode({"run": begun.paths.run}).decode() if as_json else begun.paths.run)
    warn(begun.plan)
    if begun.said:
        narrate(begun.said)
    if detach:
        return 0
    import asyncio  # what follows a run is imported while its ranks start

    from engine.client.run import LocalRun
    from engine.commands.follow import watch

    try:
        return asyncio.run(watch(LocalRun(begun.paths), notify=notify, rank_input=rank_input))
    finally:
        if rank_input is not None:
            rank_input.close()


def launch_later(profile: Profile, places: Places, after: str, *, cold: bool, as_json: bool) -> int:
    """Puts a run into the queue, which starts once another run has ended. Returns the exit status. `after`: the other run."""
    from engine.client.sweeps.enqueue import enqueue, entry_of  # other launches need no queue
    from engine.client.sweeps.points import unattended

    end_early()
    profile = unattended(profile, places)
    entry = entry_of(profile, make_plan(profile, LAUNCHED, places=places), after=find_run(after).run, cold=cold)
    number = enqueue([entry]).last
    click.echo(msgspec.json.encode({"entry": number}).decode() if as_json else str(number))
    narrate(f"entry {number} of the queue starts once {entry.after} has ended; rankdeck queue shows it")
    return 0


def _wait_for_task(claimed: Path, *, detach: bool) -> int:
    """Waits for the end of the run that another task of this step has launched. Returns its exit status."""
    from engine.client.steps import wait_claimed
    from engine.commands.show import exit_status
    from engine.runs.replay import stored_snapshot

    task, run = wait_claimed(claimed)
    narrate(f"task {task} has launched {run}, the run of this step; this task waits for its end")
    paths = RunPaths(runs_folder() / run)
    while not detach:
        if (summary := read_summary(paths)) is not None and summary.state in ENDED_WORDS:
            return exit_status(stored_snapshot(paths))
        time.sleep(END_PERIOD)
    return 0
