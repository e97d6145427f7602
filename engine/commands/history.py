"""`rankdeck runs` and `rankdeck note`: the history of runs, and the user's notes about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from engine.client.history import History
from engine.commands.output import print_json, print_line, print_table
from engine.core.errors import UsageError
from engine.core.numbers import DAY_AND_TIME, clock, duration_words, size_words
from engine.core.views.history import (
    SORT_KEYS,
    HistoryEntry,
    filter_history,
    metric_names,
    sort_history,
    value_of,
)
from engine.core.words import limited
from engine.runs.paths import RunPaths
from engine.runs.record import read_note, write_note

MAX_CHANGES = 60
"""Characters of changed settings in a line of the table; JSON has all of them."""


def show_history(words: Sequence[str], key: str, *, reverse: bool, limit: int | None, as_json: bool) -> None:
    """Prints the history; see `filter_history` and `sort_history`. Raises UsageError: no run has a metric of that name."""
    everything = History().read()
    known = (*SORT_KEYS, *metric_names(everything))
    if key not in known:
        raise UsageError(f"runs can't be sorted by {key!r}", hint=f"choose one of: {', '.join(known)}")
    shown = sort_history(filter_history(everything, words), key, reverse=reverse)[:limit]
    if as_json:
        print_json([_data(entry) for entry in shown])
        return
    if not shown:
        click.echo("no run matches" if everything else "no runs yet; start one with: rankdeck launch quickstart")
        return
    extra = (key,) if key not in SORT_KEYS and key != "loss" else ()
    rows = [("", "RUN", "LAUNCHED", "TIME", "STATE", "STEP", "LOSS", *map(str.upper, extra), "SIZE", "CHANGED", "NOTE")]
    rows += [_row(entry, extra) for entry in shown]
    print_table(rows)


def _row(entry: HistoryEntry, extra: tuple[str, ...]) -> tuple[str, ...]:
    run = entry.summary
    values = (value_of(entry, name) for name in ("loss", *extra))
    return (
        "*" if entry.note.starred else "",
        run.run,
        clock(run.launched_at, DAY_AND_TIME),
        duration_words(entry.seconds),
        run.state,
        "" if run.step is None else str(run.step),
        *("" if value is None else f"{value:.5g}" for value in values),
        "" if entry.size is None else size_words(entry.size),
        limited(entry.change_words, MAX_CHANGES),
        entry.note.text,
    )


def _data(entry: HistoryEntry) -> dict[str, Any]:
    run = entry.summary
    return {
        "run": run.run,
        "name": run.name,
        "state": run.state,
        "reason": run.reason,
        "launched_at": run.launched_at,
        "ended_at": run.ended_at,
        "seconds": round(entry.seconds, 3),
        "attempts": run.attempt + 1,
        "backend": run.backend,
        "world_size": run.world_size,
        "step": run.step,
        "steps": run.steps,
        "loss": run.loss,
        "metrics": entry.metrics,
        "changes": None if entry.changes is None else [change._asdict() for change in entry.changes],
        "size": entry.size,
        "starred": entry.note.starred,
        "note": entry.note.text,
    }


def note_run(paths: RunPaths, text: str | None, star: bool | None) -> None:
    """Changes or prints the note of a run. `text`: the new note; None: leave it. `star`: whether the run is marked; None: leave it. Raises
    RankdeckError: the note can't be written."""
    note = read_note(paths)
    if text is None and star is None:
        print_line(f"{'* ' if note.starred else ''}{note.text}" or "no note")
        return
    text = note.text if text is None else " ".join(text.split())
    write_note(paths, msgspec.structs.replace(note, text=text, starred=note.starred if star is None else star))
