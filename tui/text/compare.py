"""The text of a comparison: results of all runs, and what differs between them. Pure text."""

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content

from engine.core.views.comparison import Topic
from tui.text.cells import cell_fit, cut_run, plain_line
from tui.text.marks import MUTED, shown

MAX_NAME = 22  # cells of the names of rows
SMALLEST = 10  # cells of a column, however many runs are compared


def compare_text(runs: Sequence[str], parts: Sequence[Topic], width: int, *, ascii: bool) -> Content:
    """A table with a column for each run. Rows that differ stand out; subjects but results have only such rows."""
    names = [plain_line(row.name) for part in parts for row in part.rows]
    name = min(MAX_NAME, max(map(cell_len, names), default=0))
    each = max(SMALLEST, (width - name) // max(1, len(runs)) - 2)

    def line(first: str, values: Sequence[str], style: str) -> Content:
        cells = "".join("  " + cell_fit(plain_line(value), each, ascii=ascii) for value in values)
        return Content.assemble((cell_fit(first, name, ascii=ascii), MUTED), (cells.rstrip(), style))

    lines: list[Content | str] = [line("", [cut_run(run, each, ascii=ascii) for run in runs], "bold")]
    for part in sorted(
        parts, key=lambda part: part.title == "results"
    ):  # what differs explains the results: it comes first
        lines += ["", Content.styled(part.title.capitalize(), "bold $text-accent")]
        lines += [line(plain_line(row.name), row.values, "" if row.differs else MUTED) for row in part.rows]
    if all(part.title == "results" for part in parts):
        lines += [
            "",
            Content.styled("Settings, plan, code, versions and environment are the same, or not known.", MUTED),
        ]
    return shown(Content("\n").join(lines), ascii=ascii)


def code_text(lines: Sequence[str], width: int, *, ascii: bool) -> Content:
    """How uncommitted changes differ: lines of a diff, cut at the width."""
    if not lines:
        return Content.styled("The uncommitted changes of the code are the same, or not known.", MUTED)
    styles = {"+": "$text-success", "-": "$text-error", "@": MUTED}
    drawn = [
        Content.styled(cell_fit(plain_line(line), width, ascii=ascii).rstrip(), styles.get(line[:1], ""))
        for line in lines
    ]
    return shown(Content("\n").join(drawn), ascii=ascii)
