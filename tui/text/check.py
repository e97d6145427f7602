"""A finding in words, for the pane below the grid. Pure text."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content

from engine.core.checks.findings import CHECK_WORDS, Check, Finding, Grid
from tui.text.cells import cell_fit, plain_line
from tui.text.marks import CHECK_MARKS, MUTED, to_ascii
from tui.text.plan import wrapped

MAX_NAME = 24


def finding_text(node: str, check: Check, finding: Finding | None, width: int, *, ascii: bool) -> Content:  # noqa: A002
    """What is known of one cell.

    Args:
        node: its row.
        check: its column.
        finding: what was found there; None as long as nothing was.
        width: cells of a line.
        ascii: draws with ASCII characters.
    """
    mark = CHECK_MARKS[finding.state if finding else None]
    word = finding.state if finding else "not checked yet"
    head = f"{mark.ascii if ascii else mark.sign} {'not checked' if word == 'skip' else word}"
    lines: list[Content | str] = [
        Content.assemble((f"{plain_line(node)}, {check}  ", "bold"), (head, mark.style)).truncate(width)
    ]
    if finding is not None:
        lines += wrapped(plain_line(finding.text).split(), width)
        if finding.hint:
            lines += [Content.styled(line, "$text-accent") for line in wrapped(plain_line(finding.hint).split(), width)]
    lines += [Content.styled(line, MUTED) for line in wrapped(f"Checked: {CHECK_WORDS[check]}.".split(), width)]
    text = Content("\n").join(lines)
    return Content(to_ascii(text.plain), list(text.spans)) if ascii else text


def grid_title(name: str, grid: Grid, *, is_running: bool, ascii: bool) -> str:  # noqa: A002
    """What the border says of all nodes together."""
    name = plain_line(name)
    fitted = cell_fit(name, min(cell_len(name), MAX_NAME), ascii=ascii)
    done = sum(grid.is_complete(node) for node in grid.nodes)
    nodes = f"{done} of {len(grid.nodes)} nodes" if is_running else f"{len(grid.nodes)} nodes"
    return f"Check of {fitted}, {'1 node' if nodes == '1 nodes' else nodes}: {verdict(grid, is_running=is_running)}"


def verdict(grid: Grid, *, is_running: bool) -> str:
    """The result so far, in words."""
    counts = [(len(grid.in_state("fail")), "failure"), (len(grid.in_state("warn")), "warning")]
    words = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count)
    if is_running:
        return f"{words}, checking" if words else "checking"
    return words or ("no problems" if grid.nodes else "nothing was checked")
