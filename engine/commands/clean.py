"""Removes runs that have ended. A run that may still have processes is never touched."""

from __future__ import annotations

import shutil
import sys

import click
import msgspec

from engine.client.engine import all_runs, summarise
from engine.core.errors import RankdeckError, UsageError
from engine.core.run.state import ENDED_WORDS
from engine.runs.paths import RunPaths


def clean_runs(chosen: list[RunPaths], *, yes: bool, as_json: bool) -> None:
    """`rankdeck clean`.

    Args:
        chosen: which; empty: every run that has ended.
        yes: does not ask.
        as_json: prints the ids of what was removed.

    Raises:
        UsageError: a chosen run has not ended.
        RankdeckError: a folder can't be removed.
    """
    for paths in chosen:
        summary = summarise(paths)
        if summary is not None and summary.state not in ENDED_WORDS:
            raise UsageError(f"run {paths.run} is {summary.state}", hint=f"rankdeck stop {paths.run} ends it")
    ended = chosen or [paths for paths in all_runs() if (summary := summarise(paths)) and summary.state in ENDED_WORDS]
    if not ended:
        click.echo("[]" if as_json else "no run has ended")
        return
    if not yes and sys.stdin.isatty():
        click.echo("\n".join(paths.run for paths in ended))
        click.confirm(f"Remove {len(ended)} run(s) with their logs and checkpoints?", default=False, abort=True)
    for paths in ended:
        try:
            shutil.rmtree(paths.folder)
        except OSError as error:
            raise RankdeckError(f"can't remove {paths.folder}: {error.strerror}") from None
    removed = [paths.run for paths in ended]
    click.echo(msgspec.json.encode(removed).decode() if as_json else f"removed {len(removed)} run(s)")
