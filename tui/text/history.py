"""The text of the history: one line for each run, and the details of one. Pure text."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual.content import Content

from engine.core.metrics.direction import main_metric
from engine.core.numbers import DAY_AND_TIME, age, clock, duration, precise, size_words
from engine.core.settings import DEFAULT_UNITS, Units
from engine.core.views import history as past
from engine.core.views.groups import Spread, groups, ranked
from engine.core.views.history import HistoryEntry, SortKey
from engine.core.words import count
from tui.text.cells import cell_fit, cut_run, plain_line
from tui.text.lines import labelled
from tui.text.marks import MUTED, RUN_MARKS, shown

MAX_NAME = 26  # cells of a run's id on a wide screen; on a narrow one it has `NARROW_NAME`

NARROW_NAME = 16
MOST_SETTING = 14  # cells of a setting of a sweep
WIDE = 96  # cells from which the columns of steps and notes are shown
MOST_METRICS = 6  # final values in the details


class Look(NamedTuple):
    """How the history is shown. `marked`: ids of runs."""

    width: int
    sort: SortKey
    reverse: bool
    marked: Collection[str]
    ascii: bool
    units: Units = DEFAULT_UNITS


class _Column(NamedTuple):
    """A column: heading, cells, the key that sorts by it, and whether it is aligned to the right."""

    heading: str
    width: int
    sort: SortKey
    right: bool = True


def columns(entries: Sequence[HistoryEntry], look: Look) -> list[_Column]:
    """The columns that fit, but the last, which takes the rest."""
    most = MAX_NAME if look.width >= WIDE else NARROW_NAME
    name = min(most, cell_len(plain_line(max((entry.summary.run for entry in entries), key=len, default="run"))))
    found = [_Column("run", name, past.sort_key("name"), right=False)]
    if own := past.sweep_keys(entries):
        found += [_swept_column(entries, key) for key in own]
    else:
        found.append(_Column("launched", 11 if look.units.time == "local" else 12, past.sort_key("launched")))
    found.append(_Column("time", 7, past.sort_key("duration")))
    if look.width >= WIDE:
        found.append(_Column("step", 7, past.sort_key("step")))
    found.append(_Column("loss", 9, past.sort_key("loss")))
    if look.sort.kind == "last" and look.sort.name != "loss":
        found.append(_Column(plain_line(look.sort.name)[:10], 10, look.sort))
    if not own:
        found.append(_Column("size", 8, past.sort_key("size")))
    return found


def _swept_column(entries: Sequence[HistoryEntry], key: SortKey) -> _Column:
    """The column of a setting that a sweep varies, or of its best value."""
    if key.kind == "best":
        return _Column(plain_line(key.words)[:MOST_SETTING], MOST_SETTING, key)
    short = plain_line(key.name.rpartition(".")[2])
    texts = [short, *(plain_line(past.swept_value(entry, key.name)) for entry in entries)]
    return _Column(short, min(MOST_SETTING, 1 + max(map(cell_len, texts))), key)


def history_heading(entries: Sequence[HistoryEntry], look: Look) -> Content:
    """The line above the list; the column by which it is sorted stands out."""
    arrow = ("^" if look.reverse else "v") if look.ascii else ("▲" if look.reverse else "▼")
    parts: list[tuple[str, str] | str] = ["      "]
    for column in columns(entries, look):
        is_sorted = column.sort == look.sort
        text = f"{arrow}{column.heading}" if is_sorted else column.heading
        style = "bold $foreground" if is_sorted else MUTED
        parts += [(cell_fit(text, column.width, ascii=look.ascii, right=column.right), style), "  "]
    last = "changed, note"
    left = look.width - sum(cell_len(part if isinstance(part, str) else part[0]) for part in parts)
    parts.append((last if cell_len(last) <= left else "changed", MUTED))
    return Content.assemble(*parts)


def history_lines(entries: Sequence[HistoryEntry], look: Look, most: int | None = None) -> list[Content]:
    """One line for each run, or for the first `most` of them: mark, star, state, and the columns."""
    found = columns(entries, look)
    star, mark = ("*", "#") if look.ascii else ("★", "✓")
    lines = []
    for entry in entries[:most]:
        run = entry.summary
        state = RUN_MARKS[run.state]
        cells = [cell_fit(_cell(entry, one, look), one.width, ascii=look.ascii, right=one.right) for one in found]
        words = [plain_line(change.words) for change in entry.changes or ()]
        told = [(", ".join(words), "")] if words else []
        if entry.note.text:
            told.append((f"{'  ' if words else ''}{plain_line(entry.note.text)}", "$text-accent"))
        elif run.state in ("failed", "unreadable") and not words:
            told.append((plain_line(run.reason), "$text-error"))
        line = Content.assemble(
            (mark if run.run in look.marked else " ", "$text-accent bold"),
            (star if entry.note.starred else " ", "$text-warning"),
            " ",
            (state.sign(ascii=look.ascii), state.style),
            "  ",
            cells[0],
            "  ",
            ("  ".join(cells[1:]), MUTED),
            "  ",
            *told,
        )
        lines.append(shown(line, ascii=look.ascii))
    return lines


def _cell(entry: HistoryEntry, column: _Column, look: Look) -> str:
    run, name = entry.summary, column.sort.name
    match column.sort.kind, name:
        case "column", "name":
            return cut_run(run.run, column.width, ascii=look.ascii)
        case "column", "launched":
            return clock(run.launched_at, "%m-%d %H:%M", look.units)
        case "column", "duration":
            return duration(entry.seconds)
        case "column", "step":
            return "" if run.step is None else str(run.step)
        case "column", _:
            return "" if entry.size is None else size_words(entry.size)
        case "value", _:
            return plain_line(past.swept_value(entry, name))
        case "best", _:
            return precise(entry.best.get(name))
    return precise(past.value_of(entry, name))


def group_table(entries: Sequence[HistoryEntry], over: str, look: Look) -> tuple[list[str], list[Content]]:
    """One line for runs of a sweep that differ in a setting only, best first: mean and deviation. Returns the best run of each, and heading and lines."""
    names, metric = [one for one in past.swept_names(entries) if one != over], main_metric(one.best for one in entries)
    found = groups(past.sort_history(entries, SortKey("best", metric)), names)
    found = ranked(found, metric, past.best_direction(entries, metric), reverse=look.reverse)
    rows = [["", *(one.rpartition(".")[2] for one in names), "runs", f"best {metric}", f"last {metric}"]]
    for one in found:
        mark = ("#" if look.ascii else "✓") if one.run in look.marked else ""
        spreads = [_spread(own.get(metric), ascii=look.ascii) for own in (one.best, one.last)]
        rows.append([mark, *one.values.values(), str(one.runs), *spreads])
    columns = [[plain_line(cell) for cell in column] for column in zip(*rows, strict=True)]
    widths = [1, *(max(map(cell_len, column)) for column in columns[1:])]
    cells = [
        [cell_fit(cell, width, ascii=look.ascii, right=True) for cell in column]
        for column, width in zip(columns, widths, strict=True)
    ]
    heading, *lines = ["  ".join(row) for row in zip(*cells, strict=True)]
    return [one.run for one in found], [
        Content.styled(heading, MUTED),
        *(shown(Content(line), ascii=look.ascii) for line in lines),
    ]


def _spread(spread: Spread | None, *, ascii: bool) -> str:
    if spread is None or spread.deviation is None:
        return "" if spread is None else precise(spread.mean)
    return f"{precise(spread.mean)} {'+-' if ascii else '±'} {precise(spread.deviation)}"


def history_details(
    entry: HistoryEntry, width: int, now: float, *, ascii: bool, units: Units = DEFAULT_UNITS
) -> Content:
    """The run under the cursor."""
    run = entry.summary
    mark = RUN_MARKS[run.state]
    steps = "" if run.step is None else f", step {run.step}" + (f"/{run.steps}" if run.steps else "")
    when = clock(run.launched_at, DAY_AND_TIME, units)
    lines: list[Content | str] = [
        Content.assemble(
            (f"{mark.sign(ascii=ascii)} {run.state}", mark.style),
            f"{steps}, {count(run.world_size, 'rank')} over {plain_line(run.backend)}, launched {when} ({age(now - run.launched_at)} ago)",
        )
    ]
    if entry.note.text:
        lines += labelled("note", plain_line(entry.note.text), width, style="$text-accent")
    if run.swept is not None:
        place = f"{run.swept.sweep}, run {run.swept.number} of {run.swept.runs}: {run.swept.words}"
        lines += labelled("sweep", plain_line(place), width)
    if run.reason:
        lines += labelled(
            "why", plain_line(run.reason), width, style="$text-error" if run.state in ("failed", "unreadable") else ""
        )
    if entry.changes is None:
        changed = "it is the first run of this profile"
    else:
        changed = ", ".join(plain_line(f"{one.words} (was {one.before or 'not set'})") for one in entry.changes)
    lines += labelled("changed", changed or "nothing; it is as the run before", width)
    values = [f"{plain_line(name)} {precise(value)}" for name, value in list(entry.metrics.items())[:MOST_METRICS]]
    if values:
        lines += labelled("values", ", ".join(values), width)
    return shown(Content("\n").join(lines), ascii=ascii)
