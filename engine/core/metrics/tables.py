"""Tables in output: a line with the names of columns, then rows of numbers, as fastai, skorch, Ultralytics and CSV loggers print them."""

from __future__ import annotations

import re
from typing import NamedTuple

from engine.core.metrics.metric_names import Names, meaning_of

MAX_COLUMNS = 64

_SEPARATORS = ((",", re.compile(r"[ \t]*,[ \t]*")), ("|", re.compile(r"[ \t]*\|[ \t]*")), ("\t", re.compile(r" *\t *")),
               ("  ", re.compile(r"[ \t]{2,}")))  # fmt: skip
_COLUMN = re.compile(r"[A-Za-z_][\w@./ ()%+-]{0,40}\Z")
_CELL = re.compile(
    r"[-+]?[\d.]*\d\.?(?:e[-+]?\d+)?[kmg%]?(?:/\d+)?\Z|[-+]?(?:nan|inf)\Z|(?:\d+:)+\d+(?:\.\d+)?\Z|-?\Z", re.IGNORECASE
)
_BLANKS = re.compile(r"[ \t]+")
_BAR_BEHIND = re.compile(r":[ \t]+(?=\d{1,3}%\|)")


class Table(NamedTuple):
    """The columns of a table. `separator`: a comma, a bar, a tab, or two spaces for any number of blanks."""

    columns: tuple[str, ...]
    separator: str


def table_of(line: str, names: Names) -> Table | None:
    """The table that begins with a line of names; None: it is another line.

    Args:
        line: without numbers.
        names: what the profile says about names.
    """
    line = line.strip()
    for separator, pattern in _SEPARATORS:
        cells = [cell.strip("\"' ") for cell in pattern.split(line.strip("|") if separator == "|" else line)]
        cells = [cell for cell in cells if cell] if separator == "|" else cells
        if not (2 if separator == "," else 3) <= len(cells) <= MAX_COLUMNS or not all(map(_COLUMN.match, cells)):
            continue
        roles = {meaning_of(cell, "", names).role for cell in cells}
        if (roles & {"loss", "val_loss", "part"} and roles & {"step", "steps", "epoch", "epochs"}) or len(
            roles & {"step", "epoch", "known"}
        ) > 1:
            return Table(tuple(cells), separator)
    return None


def row_text(table: Table, line: str) -> str | None:
    """A row in the form `name=value, name=value`, and a bar behind it before that; None: the line is no row of the table."""
    line = line.strip()
    cut = _BAR_BEHIND.search(line)
    bar = line[cut.end() :] + " " if cut else ""
    line = line[: cut.start()] if cut else line
    if table.separator == "  ":
        cells = _BLANKS.split(line)
    else:
        cells = [
            cell.strip("\"' \t") for cell in line.strip("|" if table.separator == "|" else "").split(table.separator)
        ]
    if len(cells) != len(table.columns) or not all(map(_CELL.match, cells)) or not any(cells):
        return None
    return bar + ", ".join(
        f"{name}={cell}" for name, cell in zip(table.columns, cells, strict=True) if cell and ":" not in cell
    )
