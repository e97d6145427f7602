"""What `rankdeck check` prints."""

from collections.abc import Iterable, Sequence

import click

from engine.commands.output import narrate, print_json, print_line, print_table
from engine.core.checks.findings import CHECKS, Begun, Finding, Grid, State, problem_words
from engine.core.errors import CheckError

MARKS: dict[State, tuple[str, str, str]] = {
    "ok": ("●", "*", "ok"),
    "warn": ("▲", "!", "warn"),
    "fail": ("✖", "X", "fail"),
    "skip": ("-", "-", ""),
}
"""For each state of a check: its sign, the sign in ASCII, and the word beside it."""

WIDEST = max(len(f"{sign} {word}") for sign, _, word in MARKS.values())  # columns of a cell
NONE = "no problems found"
WIDTH = 80  # columns of a table that has a choice


class Checklist:
    """Collects findings. Reports each node on standard error when it is done; prints a table and the problems at the end. `as_json`: prints
    the findings as JSON instead of the table. `ascii_only`: uses ASCII signs."""

    def __init__(self, *, as_json: bool, ascii_only: bool) -> None:
        self._as_json, self._ascii = as_json, ascii_only
        self._grid = Grid(())
        self._done: set[str] = set()

    def take(self, news: Begun | Finding) -> None:
        """Adds one result of a check."""
        if isinstance(news, Begun):
            self._grid = Grid(news.nodes)
            return
        self._grid.take(news)
        if len(self._grid.nodes) > 1 and news.node not in self._done and self._grid.is_complete(news.node):
            self._done.add(news.node)
            narrate(f"{news.node}: {problem_words(self._grid.of(news.node)) or NONE}")

    def show(self) -> int:
        """Prints the result. Returns the exit status: 3 if a check failed, else 0."""
        failures, warnings = self._grid.in_state("fail"), self._grid.in_state("warn")
        if self._as_json:
            print_json(self._grid.all())
        else:
            print_table(self._rows())
            offers = [finding for finding in self._grid.in_state("ok") if finding.hint]
            for finding in (*failures, *warnings, *offers):
                click.echo("")
                print_line(f"{self._cell(finding)}  {finding.node}, {finding.check}: {finding.text}")
                if finding.hint:
                    print_line(f"  {finding.hint}")
            click.echo(f"\n{problem_words((*failures, *warnings)) or NONE}")
        return CheckError.exit_status if failures else 0

    def _rows(self) -> Iterable[Sequence[str]]:
        """One row for each check, one column for each node; or the other way round, with more nodes than have room side by side.

        With one node there is room for the text of the finding.
        """
        nodes = self._grid.nodes
        if len(nodes) == 1:
            yield ("CHECK", "STATE", nodes[0])
            yield from ((finding.check, self._cell(finding), finding.text) for finding in self._grid.all())
            return
        cells = [[self._cell(self._grid.at(node, check)) for node in nodes] for check in CHECKS]
        if max(map(len, CHECKS)) + sum(2 + max(len(node), WIDEST) for node in nodes) <= WIDTH:
            yield ("CHECK", *nodes)
            yield from ((check, *row) for check, row in zip(CHECKS, cells, strict=True))
        else:
            yield ("NODE", *(check.upper() for check in CHECKS))
            yield from ((node, *column) for node, column in zip(nodes, zip(*cells, strict=True), strict=True))

    def _cell(self, finding: Finding | None) -> str:
        sign, in_ascii, word = MARKS[finding.state if finding else "skip"]
        return f"{in_ascii if self._ascii else sign} {word}".rstrip()
