"""`rankdeck compare`: the results of runs side by side, and what differs between them."""

import itertools
from collections.abc import Sequence
from typing import Any

from engine.client.history import read_side
from engine.commands.output import narrate, print_json, print_line, print_table
from engine.core.plan.secrets import hidden
from engine.core.views.comparison import Side, Topic, code_difference, compare
from engine.core.words import limited
from engine.runs.paths import RunPaths

MAX_CELL = 50  # characters of a value in the table; JSON has all of them


def compare_runs(runs: Sequence[RunPaths], *, code: bool, show_secrets: bool, as_json: bool) -> None:
    """Prints a column for each run. Raises SupervisorError: the files of a run can't be read."""
    sides = [read_side(paths).side for paths in runs]
    for side in sides:
        if side.settings is None:
            narrate(f"the profile of {side.run} can't be read, so settings are left out")
    if code:
        for before, after in itertools.pairwise(sides):
            for line in code_difference(before, after):
                print_line(line if show_secrets else hidden(line))
        return
    parts = compare(sides, show_secrets=show_secrets)
    if as_json:
        print_json([_data(side, at, parts) for at, side in enumerate(sides)])
        return
    blank = ("",) * len(sides)
    rows: list[tuple[str, ...]] = [("", *(side.run for side in sides))]
    for part in parts:
        if part.title != "results":
            rows += [("", *blank), (part.title.upper(), *blank)]
        rows += [(row.name, *(limited(value, MAX_CELL) for value in row.values)) for row in part.rows]
    print_table(rows)
    if all(side.origin is None for side in sides):
        narrate("code, versions and environment were not recorded when these runs were launched")


def _data(side: Side, at: int, parts: Sequence[Topic]) -> dict[str, Any]:
    """One run as JSON: results as numbers, and its values of what differs."""
    found = {part.title: {row.name: row.values[at] for row in part.rows} for part in parts}
    return {
        "run": side.run,
        "results": side.results,
        "differs": found.get("settings", {}),
        **{title: found.get(title, {}) for title in ("plan", "code", "versions", "environment")},
    }
