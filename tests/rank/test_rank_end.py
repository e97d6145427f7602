"""What the end of a forked rank does not free. tests/e2e/test_warm.py compares such ends with those of the interpreter."""

import json
from pathlib import Path

from tests.support import entries
from tests.warm_ranks import template

GROUPS = entries("rank/rank_end", "groups")


def test_groups_are_found_in_what_owns_them(tmp_path: Path) -> None:
    (tmp_path / "groups.py").write_text(GROUPS)
    assert template().start(["groups.py"], {}, tmp_path, tmp_path / "out").wait(60) == 0
    found = json.loads((tmp_path / "out").read_text())
    assert {"Reducer", "ProcessGroup"} <= set(found)


REMOVALS = entries("rank/rank_end", "removals")


def test_operators_are_removed_after_the_exit_handlers_and_only_where_the_interpreter_ends_a_rank(tmp_path: Path):
    (tmp_path / "removals.py").write_text(REMOVALS)
    assert template().start(["removals.py"], {}, tmp_path, tmp_path / "out").wait(60) == 0
    said = (tmp_path / "out").read_text().splitlines()
    assert said == ["at once", "other", "handlers have run", "second !", "it is in use", "first"]
