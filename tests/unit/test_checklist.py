"""What `rankdeck check` prints of several nodes."""

import re

import pytest
from msgspec.structs import replace

from engine.commands.checklist import Checklist
from engine.core.checks.findings import CHECKS, Begun, fail, ok


@pytest.mark.parametrize("count", [2, 8, 9, 40])
def test_a_table_of_several_nodes_has_a_row_for_each_check_where_that_fits_80_columns(
    count: int, capsys: pytest.CaptureFixture[str]
):
    nodes = tuple(f"node{number:02}" for number in range(count))
    checklist = Checklist(as_json=False, ascii_only=False)
    checklist.take(Begun(nodes=nodes))
    for node in nodes:
        for check in CHECKS:
            checklist.take(ok(node, check, "fine"))
    checklist.take(fail(nodes[1], "ssh", "refused", "start sshd"))
    assert checklist.show() == 3
    table = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    cells = [re.split("  +", line) for line in table]
    if count <= 8:
        assert max(map(len, table)) <= 80
        assert cells[0] == ["CHECK", *nodes]
        cells = [list(column) for column in zip(*cells, strict=True)]
    assert [word.lower() for word in cells[0][1:]] == list(CHECKS)
    assert [row[0] for row in cells[1:]] == list(nodes)
    assert [row[1] for row in cells[1:]] == ["● ok", "✖ fail", *["● ok"] * (count - 2)]


def test_what_is_offered_is_printed_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    checklist = Checklist(as_json=False, ascii_only=False)
    checklist.take(Begun(nodes=("here",)))
    checklist.take(replace(ok("here", "script", "2 KiB"), hint="share its imports"))
    assert checklist.show() == 0
    assert capsys.readouterr().out.partition("\n\n")[2] == (
        "● ok  here, script: 2 KiB\n  share its imports\n\nno problems found\n"
    )
