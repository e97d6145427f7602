"""The findings of a check in words. Pure text."""

from textual.content import Content

from engine.core.checks.findings import Check, Finding, Grid, check_words, problem_words
from engine.core.words import count
from tui.text.cells import cut, plain_line
from tui.text.lines import sentence
from tui.text.marks import CHECK_MARKS, MUTED, shown

MAX_NAME = 24


def finding_text(node: str, check: Check, finding: Finding | None, width: int, *, ascii: bool) -> Content:
    """The details of one cell, in lines of `width` cells."""
    state = finding.state if finding is not None else None
    mark = CHECK_MARKS[state]
    word = "not checked yet" if state is None else "not checked" if state == "skip" else state
    head = f"{mark.sign(ascii=ascii)} {word}"
    lines = [Content.assemble((f"{plain_line(node)}, {check}  ", "bold"), (head, mark.style)).truncate(width)]
    if finding is not None:
        lines += sentence(finding.text, width)
        if finding.hint:
            lines += sentence(finding.hint, width, "$text-accent")
    lines += sentence(f"Checked: {check_words()[check]}.", width, MUTED)
    return shown(Content("\n").join(lines), ascii=ascii)


def grid_title(name: str, grid: Grid, *, is_running: bool, ascii: bool) -> str:
    """The title of the grid: the name, the nodes that are checked, and the result so far."""
    nodes, found = count(len(grid.nodes), "node"), problem_words(grid.all())
    if is_running:
        nodes = f"{sum(grid.is_complete(node) for node in grid.nodes)} of {len(grid.nodes)} nodes"
        found = f"{found}, checking" if found else "checking"
    found = found or ("no problems" if grid.nodes else "nothing was checked")
    return f"Check of {cut(plain_line(name), MAX_NAME, ascii=ascii)}, {nodes}: {found}"
