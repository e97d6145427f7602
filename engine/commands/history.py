"""`rankdeck runs` and `rankdeck note`: the history of runs, and the user's notes about them."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from engine.client.history import History
from engine.commands.output import print_json, print_line, print_table
from engine.core.errors import UsageError
from engine.core.numbers import DAY_AND_TIME, clock, duration, size_words
from engine.core.views import history as past
from engine.core.views.history import SORT_KEYS, HistoryEntry, value_of
from engine.core.words import limited
from engine.runs.paths import RunPaths
from engine.runs.record import read_note, write_note

RUN_KEYS = (
    "run", "name", "state", "reason", "launched_at", "ended_at", "backend", "world_size", "step", "steps", "loss", "nodes", "job",
    "swept", "is_early",
)  # fmt: skip
"""Fields that `runs --json` copies from the summary of a run."""

MAX_CHANGES = 60  # characters of changed settings in a line of the table; JSON has all of them


def show_history(words: Sequence[str], key: str, *, reverse: bool, limit: int | None, as_json: bool) -> None:
    """Prints the history; see `filter_history` and `sort_history`. Raises UsageError: no run has a metric of that name."""
    everything = History().read()
    known = (*SORT_KEYS, *past.metric_names(everything))
    if key not in known:
        raise UsageError(f"runs can't be sorted by {key!r}", hint=f"choose one of: {', '.join(known)}")
    shown = past.sort_history(past.filter_history(everything, words), past.sort_key(key), reverse=reverse)[:limit]
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
        duration(entry.seconds),
        run.state,
        "" if run.step is None else str(run.step),
        *("" if value is None else f"{value:.5g}" for value in values),
        "" if entry.size is None else size_words(entry.size),
        limited(entry.change_words, MAX_CHANGES),
        entry.note.text,
    )


def _data(entry: HistoryEntry) -> dict[str, Any]:
    run = {key: getattr(entry.summary, key) for key in RUN_KEYS}
    changes = None if entry.changes is None else [change._asdict() for change in entry.changes]
    run |= {"seconds": round(entry.seconds, 3), "attempts": entry.summary.attempt + 1, "size": entry.size}
    return run | {"metrics": entry.metrics, "changes": changes, "starred": entry.note.starred, "note": entry.note.text}


def note_run(paths: RunPaths, text: str | None, star: bool | None) -> None:
    """Changes or prints the note of a run. `text`: the new note; None: leave it. `star`: whether the run is marked; None: leave it. Raises
    RankdeckError: the note can't be written."""
    note = read_note(paths)
    if text is None and star is None:
        print_line(f"{'* ' if note.starred else ''}{note.text}" or "no note")
        return
    text = note.text if text is None else " ".join(text.split())
    write_note(paths, msgspec.structs.replace(note, text=text, starred=note.starred if star is None else star))
