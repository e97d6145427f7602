"""What the end of a forked rank does not free. tests/e2e/test_warm.py compares such ends with those of the interpreter."""

from __future__ import annotations

import json
from pathlib import Path

from tests.warm_ranks import template

GROUPS = """
import json, os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from engine.node.rank_end import find_groups
dist.init_process_group("gloo", init_method="file://" + os.getcwd() + "/store", rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 2))
print(json.dumps(sorted({type(one).__name__ for one in find_groups()})))
"""


def test_groups_are_found_in_what_owns_them(tmp_path: Path) -> None:
    (tmp_path / "groups.py").write_text(GROUPS)
    assert template().start(["groups.py"], {}, tmp_path, tmp_path / "out").wait(60) == 0
    found = json.loads((tmp_path / "out").read_text())
    assert {"Reducer", "ProcessGroup"} <= set(found)


REMOVALS = """
import atexit, sys, weakref
from types import ModuleType
from engine.node.rank_end import Shared

class Library: pass

library = sys.modules["torch.library"] = ModuleType("torch.library")

def remove(*words, **named):
    print(*words, *named.values())
    if named:
        raise ValueError("it is in use")

library._del_library = remove
sys.excepthook = lambda kind, error, trace: print(error)
kept = [Library(), Library()]
first, second = weakref.finalize(kept[0], remove, "first"), weakref.finalize(kept[1], remove, "second", end="!")
other = weakref.finalize(kept[0], print, "other")
shared = Shared(set(), set(), is_last=True)
gone = weakref.finalize(Library(), print, "at once")
atexit._run_exitfuncs()
print("handlers have run")
shared.remove_operators()
"""


def test_operators_are_removed_after_the_exit_handlers_and_only_where_the_interpreter_ends_a_rank(
    tmp_path: Path,
) -> None:
    (tmp_path / "removals.py").write_text(REMOVALS)
    assert template().start(["removals.py"], {}, tmp_path, tmp_path / "out").wait(60) == 0
    said = (tmp_path / "out").read_text().splitlines()
    assert said == ["at once", "other", "handlers have run", "second !", "it is in use", "first"]
