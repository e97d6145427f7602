"""Headings and tables in output. A heading tells whether the lines after it are about training, held-out data, or the whole run.

` > EVALUATION`, ` - Test metrics:` or `"validation": {` begin a section of held-out data, `***** train metrics *****` a summary. A section ends
with the next heading, the next count of the training, or the bracket that closes its object. A table is a line with the names of columns, then
rows of numbers, as fastai, skorch, Ultralytics and CSV loggers print them.
"""

import re
from typing import Literal, NamedTuple

from engine.core.metrics.lines.fields import hide
from engine.core.metrics.lines.names import Names, meaning_of
from engine.core.metrics.lines.patterns import P

MAX_COLUMNS = 64

_SEPARATORS = ((",", re.compile(r"[ \t]*,[ \t]*")), ("|", re.compile(r"[ \t]*\|[ \t]*")), ("\t", re.compile(r" *\t *")),
               ("  ", re.compile(r"[ \t]{2,}")))  # fmt: skip
_SHORT = {"E": "epoch", "#": "step"}
"""Columns of spaCy."""


class Table(NamedTuple):
    """The columns of a table. `separator`: a comma, a bar, a tab, or two spaces for any number of blanks. `words`: the names if each is
    one word."""

    columns: tuple[str, ...]
    words: tuple[str, ...]
    separator: str


def table_of(line: str, names: Names) -> Table | None:
    """The table that begins with a line of names without numbers; None: it is another line."""
    line = _without_boxes(line).strip().removeprefix("# ")
    for separator, pattern in _SEPARATORS:
        cells = [cell.strip("\"' ") for cell in pattern.split(line.strip("|") if separator == "|" else line)]
        cells = [_SHORT.get(cell, cell) for cell in cells if cell or separator != "|"]
        if not (2 if separator in ",\t" else 3) <= len(cells) <= MAX_COLUMNS or not all(map(P.column.match, cells)):
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
    line = _without_boxes(line).strip()
    cut = P.bar_behind.search(line) if "%" in line else None
    bar = line[cut.end() :] + " " if cut else ""
    line = line[: cut.start()] if cut else line
    if table.separator == "  ":
        cells = P.blanks.split(line)
    else:
        cells = [
            cell.strip("\"' \t") for cell in line.strip("|" if table.separator == "|" else "").split(table.separator)
        ]
    columns = table.words if table.separator == "  " and len(cells) == len(table.words) else table.columns
    if len(cells) == len(columns) + 1 and cells[0].isdecimal():
        del cells[0]  # the index of pandas
    if table.separator == "\t":
        cells = [named[1] if (named := P.named_cell.match(cell)) else cell for cell in cells]
    if len(cells) != len(columns) or not all(map(P.cell.match, cells)) or not any(cells):
        return None
    return bar + ", ".join(
        f"{name}={cell}" for name, cell in zip(columns, cells, strict=True) if cell and ":" not in cell
    )


Section = Literal["training", "held out", "held out table", "summary"]
"""Where a line is. A row of a table counts epochs or steps without ending the section that the table is in."""

LONGEST = 200  # bytes of the longest heading
CLOSED = frozenset((b"}", b"},"))  # lines that close an object


def section_of(line: str) -> Section | None:
    """The section that a line begins; None: it is no heading."""
    line = line.strip()
    found = P.heading.search(line)
    if (
        found is None
        or P.reported.search(hide(line[: found.start()]))
        or not (found["end"].strip() or found["what"] or found[0] == line or found[0][:1] in ">*=#-" or line.isupper())
    ):
        return None
    if found["best"] or (found["train"] and re.search(r"metrics|summary|results", found["what"], re.IGNORECASE)):
        return "summary"
    return "training" if found["train"] else "held out"


def _without_boxes(line: str) -> str:
    if not line.isascii():  # much faster than `translate`
        for glyph in "│┃║┆":
            line = line.replace(glyph, "|")
    return line
