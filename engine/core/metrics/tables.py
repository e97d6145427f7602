"""Tables in output: a line with the names of columns, then rows of numbers, as fastai, skorch, Ultralytics and CSV loggers print them."""

from __future__ import annotations

import re
from typing import NamedTuple

from engine.core.metrics.metric_names import Names, meaning_of

MAX_COLUMNS = 64

_SEPARATORS = ((",", re.compile(r"[ \t]*,[ \t]*")), ("|", re.compile(r"[ \t]*\|[ \t]*")), ("\t", re.compile(r" *\t *")),
               ("  ", re.compile(r"[ \t]{2,}")))  # fmt: skip
_COLUMN = re.compile(r"#\Z|[A-Za-z_][\w@./ ()%+-]{0,40}\Z")
_CELL = re.compile(
    r"[-+]?[\d.]*\d\.?(?:e[-+]?\d+)?[kmgs%]?(?:/\d+)?\Z|[-+]?(?:nan|inf)\Z|(?:\d+:)+\d+(?:\.\d+)?\Z|-?\Z", re.IGNORECASE
)
_NAMED_CELL = re.compile(r"[A-Za-z][\w/ .-]{0,30}: ?([\d.]+)(?![\w.])")
"""`images/sec: 346.0 +/- 0.5`."""
_BOX = str.maketrans("│┃║┆", "||||")
_SHORT = {"E": "epoch", "#": "step"}
"""Columns of spaCy."""
_BLANKS = re.compile(r"[ \t]+")
_BAR_BEHIND = re.compile(r":[ \t]+(?=\d{1,3}%[| ])")


class Table(NamedTuple):
    """The columns of a table.

    `separator`: a comma, a bar, a tab, or two spaces for any number of blanks. `words`: the names if each is one word.
    """

    columns: tuple[str, ...]
    words: tuple[str, ...]
    separator: str


def table_of(line: str, names: Names) -> Table | None:
    """The table that begins with a line of names; None: it is another line.

    Args:
        line: without numbers.
        names: what the profile says about names.
    """
    line = line.translate(_BOX).strip().removeprefix("# ")
    for separator, pattern in _SEPARATORS:
        cells = [cell.strip("\"' ") for cell in pattern.split(line.strip("|") if separator == "|" else line)]
        cells = [_SHORT.get(cell, cell) for cell in cells if cell or separator != "|"]
        if not (2 if separator in ",\t" else 3) <= len(cells) <= MAX_COLUMNS or not all(map(_COLUMN.match, cells)):
            continue
        roles = {meaning_of(cell, "", names).role for cell in cells}
        counts = roles & {"step", "steps", "epoch", "epochs"}
        is_wide = len(cells) > 3 and separator != ","
        if (counts and (roles & {"loss", "val_loss", "part"} or is_wide)) or len(
            roles & {"step", "epoch", "known"}
        ) > 1:
            return Table(tuple(cells), tuple(line.split()), separator)
    return None


def row_text(table: Table, line: str) -> str | None:
    """A row in the form `name=value, name=value`, and a bar behind it before that; None: the line is no row of the table."""
    line = line.translate(_BOX).strip()
    cut = _BAR_BEHIND.search(line)
    bar = line[cut.end() :] + " " if cut else ""
    line = line[: cut.start()] if cut else line
    if table.separator == "  ":
        cells = _BLANKS.split(line)
    else:
        cells = [
            cell.strip("\"' \t") for cell in line.strip("|" if table.separator == "|" else "").split(table.separator)
        ]
    columns = table.words if table.separator == "  " and len(cells) == len(table.words) else table.columns
    if len(cells) == len(columns) + 1 and cells[0].isdecimal():
        del cells[0]  # the index of pandas
    if table.separator == "\t":
        cells = [named[1] if (named := _NAMED_CELL.match(cell)) else cell for cell in cells]
    if len(cells) != len(columns) or not all(map(_CELL.match, cells)) or not any(cells):
        return None
    return bar + ", ".join(
        f"{name}={cell}" for name, cell in zip(columns, cells, strict=True) if cell and ":" not in cell
    )
