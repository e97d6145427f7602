"""`rankdeck clean`: removes runs that have ended. A run that may still have processes is never removed."""

from __future__ import annotations

import sys
import time

import click
import msgspec

from engine.client.removal import ActiveRunError, active_error, has_ended, remove_run
from engine.commands.output import narrate
from engine.core.errors import RankdeckError, SupervisorElsewhereError, UsageError
from engine.core.run.state import ENDED_WORDS
from engine.core.words import count
from engine.runs.listing import all_runs, summarise, unplanned_runs
from engine.runs.paths import RunPaths, runs_folder
from engine.runs.record import read_note, refuse_elsewhere
from engine.runs.standbys import end_standby, has_process, remove_stale_standbys, standbys
from engine.supervisor.lifetime.abandon import end_processes

STANDBY_TIME = 30.0
"""Seconds in which a standby ends: it waits up to 20 for its agent."""


def old_runs(keep: int, older: float) -> list[RunPaths]:
    """The runs that have ended, without the `keep` newest of them, starred ones, and those that ended less than `older` seconds ago."""
    ended = [
        (summary.ended_at, paths)
        for paths in all_runs()
        if (summary := summarise(paths)) and summary.state in ENDED_WORDS and not read_note(paths).starred
    ]
    ended += [(changed, paths) for changed, paths in unplanned_runs() if has_ended(paths)]
    youngest = time.time() - older
    return [paths for ended_at, paths in ended[keep:] if not older or (ended_at is not None and ended_at < youngest)]


def clean_runs(chosen: list[RunPaths], *, named: bool, yes: bool, as_json: bool) -> None:
    """Removes runs.

    Args:
        named: the user named each of them, so it is an error if one has not ended.
        as_json: prints the ids of removed runs as JSON.

    Raises:
        UsageError: a named run has not ended, or there is nobody to ask and no `yes`.
        SupervisorElsewhereError: a named run has a supervisor on another host.
        RankdeckError: a folder can't be removed.
    """
    for paths in chosen:
        if named:
            refuse_elsewhere(paths, "clean")
            if not has_ended(paths) and paths.plan.exists():  # without a plan, no command can continue it
                raise active_error(paths)
    if chosen and not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                f"nothing was removed: there is no terminal to confirm the removal of {count(len(chosen), 'run')}",
                hint="add --yes to remove them without a question",
            )
        click.echo("\n".join(paths.run for paths in chosen))
        click.confirm(f"Remove {count(len(chosen), 'run')} with logs and checkpoints?", default=False, abort=True)
    removed = [paths.run for paths in chosen if _remove(paths, is_chosen=named)]
    if as_json:
        click.echo(msgspec.json.encode(removed).decode())
    else:
        click.echo(f"removed {count(len(removed), 'run')}" if chosen else "there is no run to remove")


def end_standbys(*, as_json: bool) -> None:
    """Ends the standbys of this host, waits until they are gone, and removes folders that killed ones have left.

    Args:
        as_json: prints their pids as JSON.

    Raises:
        RankdeckError: one does not end.
    """
    found = unasked = list(standbys())
    deadline = time.monotonic() + STANDBY_TIME
    while left := [paths for paths, _ in found if has_process(paths)]:
        if time.monotonic() >= deadline:
            raise RankdeckError(f"{left[0].folder.name} has not ended", hint=f"its log: {left[0].supervisor_log}")
        unasked = [one for one in unasked if not end_standby(*one)]  # a supervisor may only be about to become it
        time.sleep(0.02)
    remove_stale_standbys(runs_folder())
    if as_json:
        click.echo(msgspec.json.encode([standing.pid for _, standing in found]).decode())
    else:
        click.echo(f"ended {count(len(found), 'standby', 'standbys')}" if found else "there is no standby")


def _remove(paths: RunPaths, *, is_chosen: bool) -> bool:
    """Removes a run. False: it was gone, or it stays because it is active or elsewhere, which is an error only if the user chose it."""
    try:
        return remove_run(paths, end_rest=end_processes if is_chosen else None)
    except ActiveRunError:
        if is_chosen:
            raise
        narrate(f"{paths.run} is active again; it was not removed")
    except SupervisorElsewhereError as error:
        if is_chosen:
            raise
        narrate(f"{error.message}; it was not removed")
    return False
