"""The text of a comparison: results of all runs, and what differs between them. Pure text."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from rich.cells import cell_len
from textual.content import Content

from engine.core.views.comparison import Row, Topic
from tui.text.cells import cell_fit, cut_run, plain_line
from tui.text.marks import MUTED, shown

WIDEST = 30  # cells of a column


class DrawnRun(NamedTuple):
    """A run in a comparison, and the sign and style of its curve."""

    run: str
    sign: str = " "
    style: str = ""


def labels_of(runs: Sequence[str], parts: Sequence[Topic]) -> list[str]:
    """A name for each run that says what the others do not have: `--lr 0.1`; their ids, where that would be long or not tell them apart."""
    rows = [row for part in parts if part.title == "settings" for row in part.rows]
    labels = [
        " ".join(f"{row.name.rpartition('.')[2]} {row.values[index]}" for row in rows) for index in range(len(runs))
    ]
    is_good = len(set(labels)) == len(runs) and max(map(cell_len, labels)) <= WIDEST
    return labels if is_good else list(runs)


def compare_text(runs: Sequence[DrawnRun], parts: Sequence[Topic], width: int, *, ascii: bool) -> Content:
    """A line for each run and a column for each difference: settings and results, then each other subject. Columns that do not fit stand in
    further lines."""
    topics = {part.title: part.rows for part in parts}
    results = topics.pop("results", ())
    tables = {
        "Runs": [*topics.pop("settings", ()), *results],
        **{title.capitalize(): topics[title] for title in topics},
    }
    lines: list[Content] = []
    for title, rows in tables.items():
        lines += _table(title, runs, [row for row in rows if row.differs], width, ascii=ascii)
    if same := [f"{plain_line(row.name)} {plain_line(row.values[0])}" for row in results if not row.differs]:
        lines += [Content.styled(f"The same: {', '.join(same)}", MUTED), Content("")]
    if all(part.title == "results" for part in parts):
        words = "Settings, plan, code, versions and environment are the same, or not known."
        lines.append(Content.styled(words, MUTED))
    return shown(Content("\n").join(lines), ascii=ascii)


def _table(title: str, runs: Sequence[DrawnRun], rows: Sequence[Row], width: int, *, ascii: bool) -> list[Content]:
    """Lines of a table, with an empty one below it; none without rows of a comparison, which are its columns."""
    first = max(cell_len(title), *(2 + min(WIDEST, cell_len(plain_line(one.run))) for one in runs))
    widest = max(WIDEST, width // 3)
    columns = [(row, min(widest, max(map(cell_len, map(plain_line, (row.name, *row.values)))))) for row in rows]
    lines: list[Content] = []
    while columns:
        fit = max(1, sum(end <= width - first for end in accumulate(2 + cells for _, cells in columns)))
        now, columns = columns[:fit], columns[fit:]
        names = _cells([(row.name, cells) for row, cells in now], ascii=ascii)
        lines.append(Content.assemble((cell_fit(title, first), "bold $text-accent"), (names, MUTED)))
        for index, one in enumerate(runs):
            name = cell_fit(cut_run(one.run, first - 2, ascii=ascii), first - 2)
            values = _cells([(row.values[index], cells) for row, cells in now], ascii=ascii)
            lines.append(Content.assemble((one.sign, one.style), f" {name}", values))
        lines.append(Content(""))
    return lines


def _cells(texts: Sequence[tuple[str, int]], *, ascii: bool) -> str:
    """Texts, each in so many cells."""
    return "".join("  " + cell_fit(plain_line(text), cells, ascii=ascii) for text, cells in texts).rstrip()


def code_text(lines: Sequence[str], width: int, *, ascii: bool) -> Content:
    """How uncommitted changes differ: lines of a diff, cut at the width."""
    if not lines:
        return Content.styled("The uncommitted changes of the code are the same, or not known.", MUTED)
    styles = {"+": "$text-success", "-": "$text-error", "@": MUTED}
    drawn = [
        Content.styled(cell_fit(plain_line(one), width, ascii=ascii).rstrip(), styles.get(one[:1], "")) for one in lines
    ]
    return shown(Content("\n").join(drawn), ascii=ascii)
