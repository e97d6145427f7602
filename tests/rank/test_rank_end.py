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
