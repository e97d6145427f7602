"""Launches a profile and follows its run."""

from __future__ import annotations

import click
import msgspec

from engine.client.early import end_early
from engine.client.launch import begin_launch
from engine.client.starting import start_supervisor
from engine.commands.arguments import COLD, DETACH, JSON, PROFILE, SET, TRUST, permit_to_run, read_given
from engine.commands.output import warn
from engine.core.plan.document.places import Places
from engine.core.plan.profile import Profile
from engine.core.settings import QUIET
from engine.runs.settings import read_settings


@click.command()
@PROFILE
@SET
@TRUST
@DETACH
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
    cold: bool,
    as_json: bool,
) -> None:
    """Start a run and print the output of its ranks.

    A profile of ./.rankdeck, or of a folder of others, is launched by its name once you agree; its path is a yes. The exit status is that of
    the first rank that failed, or 128 + n for signal n. Ctrl-C asks whether to detach or to stop; without a terminal it stops the run.
    """
    given = read_given(profile, overrides)
    permit_to_run(given, trusts=trusts)
    ctx.exit(follow_launch(given.profile, given.places, detach=detach, cold=cold, as_json=as_json))


def follow_launch(
    profile: Profile, places: Places, *, detach: bool, cold: bool, as_json: bool, stdin: bool = False
) -> int:
    """Starts a run, prints its id and its warnings, and then the output of its ranks. `cold`: without the template of the user.

    Returns the exit status: 0 if detached, else that of the first rank that failed, or 128 + n for signal n.
    """
    notify = QUIET if detach else read_settings()[0].notify
    rank_input = None
    if stdin:
        from engine.commands.rank_input import RankInput

        rank_input = RankInput()
        rank = msgspec.structs.replace(profile.rank, wrap=(*rank_input.wrap, *profile.rank.wrap))
        profile = msgspec.structs.replace(profile, rank=rank)
    begun = begin_launch(profile, places, cold=cold)
    if begun.is_supervised:
        end_early()
    else:
        start_supervisor(begun.paths)
    click.echo(msgspec.json.encode({"run": begun.paths.run}).decode() if as_json else begun.paths.run)
    warn(begun.plan)
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
