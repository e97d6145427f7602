"""`rankdeck clean`: removes runs that have ended. A run that may still have processes is never removed."""

import time

import click
import msgspec

from engine.commands.output import confirm, narrate
from engine.core.errors import RankdeckError, SupervisorElsewhereError
from engine.core.run.state import ENDED_WORDS
from engine.core.words import count
from engine.runs.ends.removal import ActiveRunError, active_error, has_ended, remove_run
from engine.runs.listing import listed_runs
from engine.runs.paths import RunPaths, runs_folder
from engine.runs.record import read_note, refuse_elsewhere
from engine.runs.templates import end_template, remove_ended_templates, templates, waits
from engine.supervisor.lifetime.abandon import end_processes

TEMPLATE_TIME = 30.0  # seconds for a template to end; one that imports torch sees the request after the import


def old_runs(keep: int, older: float) -> list[RunPaths]:
    """The runs that have ended, except the `keep` newest ones, starred ones, and runs that ended less than `older` seconds ago."""
    ended = []
    for _, summary in listed_runs():
        paths = RunPaths(runs_folder() / summary.run)
        has_failed = summary.state == "unreadable" and not paths.plan.exists() and has_ended(paths)
        if has_failed or (summary.state in ENDED_WORDS and not read_note(paths).starred):
            ended.append((summary.launched_at if has_failed else summary.ended_at, paths))
    youngest = time.time() - older
    return [paths for ended_at, paths in ended[keep:] if not older or (ended_at is not None and ended_at < youngest)]


def clean_runs(chosen: list[RunPaths], *, named: bool, yes: bool, as_json: bool) -> None:
    """Removes runs. `named`: the user named each of them, so it is an error if one has not ended. `as_json`: prints the ids of removed runs
    as JSON. Raises UsageError: a named run has not ended, or there is nobody to ask and no `yes`; SupervisorElsewhereError: a named run
    has a supervisor on another host; RankdeckError: a folder can't be removed."""
    for paths in chosen:
        if named:
            refuse_elsewhere(paths, "clean")
            if not has_ended(paths) and paths.plan.exists():  # without a plan, no command can continue it
                raise active_error(paths)
    if chosen and not yes:
        words = count(len(chosen), "run")
        listed = "\n".join(paths.run for paths in chosen)
        confirm(f"{listed}\nRemove {words} with logs and checkpoints?", f"{words} were not removed")
    removed = [paths.run for paths in chosen if _remove(paths, is_chosen=named)]
    if as_json:
        click.echo(msgspec.json.encode(removed).decode())
    else:
        click.echo(f"removed {count(len(removed), 'run')}" if chosen else "there is no run to remove")


def end_templates(*, as_json: bool) -> None:
    """Ends the templates of this user on this machine, waits until they take no more runs, and removes their folders.

    Prints their pids as JSON, or their number. Raises RankdeckError: a template does not end.
    """
    found = list(templates())
    deadline = time.monotonic() + TEMPLATE_TIME
    for _, note in found:
        end_template(note)
    while left := [one for one in found if waits(one[0])]:
        if time.monotonic() >= deadline:
            hint = f"kill {left[0][1].pid} ends it; its log: {left[0][0]}/log"
            raise RankdeckError(f"the template {left[0][1].pid} has not ended", hint=hint)
        time.sleep(0.02)
    remove_ended_templates()
    if as_json:
        click.echo(msgspec.json.encode([note.pid for _, note in found]).decode())
    else:
        click.echo(f"ended {count(len(found), 'template')}" if found else "there is no template")


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
