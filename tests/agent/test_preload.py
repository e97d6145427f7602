"""What modules do when they are imported before the fork decides whether a template keeps them. No torch is needed for that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.node import preload

JUDGE = """
import json, os, sys
sys.path[:0] = sys.argv[1:3]
import preload
environment = os.environ
started = []
imports = preload.import_all(sys.argv[3:], started.append)
assert os.environ is environment and type(os.environ).__name__ == "_Environ"
print(json.dumps({**imports._asdict(), "seconds": [name for name, _ in imports.seconds], "started": started}), flush=True)
os._exit(0)
"""


def judge(folder: Path, *names: str, **modules: str) -> dict[str, Any]:
    """What comes of importing `names`, or else all `modules`: their text by name."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    argv = [sys.executable, "-I", "-c", JUDGE, str(folder), str(Path(preload.__file__).parent), *(names or modules)]
    environment = {"PATH": "/bin", "GIVEN": "1", "GONE": "1"}
    said = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment).stdout
    result: dict[str, Any] = json.loads(said)
    return result


KEPT = {
    "reads another variable": "import os; os.environ.get('HOME'); os.getenv('OMP_NUM_THREADS'); 'GIVEN' in os.environ",
    "ends its threads": "import threading; one = threading.Thread(target=int); one.start(); one.join()",
    "waits for its process": "import subprocess; subprocess.run(['true'])",
    "handlers that do nothing": "import atexit, os, threading\natexit.register(print)\nos.register_at_fork(before=int, after_in_child=int)",
    "a handler of its own process": "import atexit, os\nown = os.getpid()\natexit.register(lambda: os.getpid() == own and os.remove('x'))",
    "ends threads for a fork": """
import os, threading
stop = threading.Event()
thread = threading.Thread(target=stop.wait, daemon=True)
thread.start()
os.register_at_fork(before=lambda: (stop.set(), thread.join()))
""",
    "an older import": "import logging, multiprocessing.util, concurrent.futures.process, tempfile, decimal",
}

REFUSED = {
    "raises": ("1 / 0", "can't be imported: ZeroDivisionError: division by zero"),
    "exits": ("import sys; sys.exit(3)", "can't be imported: SystemExit: 3"),
    "needs another": ("import surely_not_there", "can't be imported: No module named 'surely_not_there'"),
    "reads its rank": ("import os; os.environ.get('RANK')", "reads RANK from the environment, and each rank has its own"),
    "asks for its rank": ("import os; 'LOCAL_RANK' in os.environ", "reads LOCAL_RANK from"),
    "getenv": ("import os; os.getenv('WORLD_SIZE', '1')", "reads WORLD_SIZE from"),
    "sets a rank": ("import os; os.environ.setdefault('MASTER_PORT', '1')", "reads MASTER_PORT from"),
    "reads of MPI": ("import os; os.environ.get('OMPI_COMM_WORLD_RANK')", "reads OMPI_COMM_WORLD_RANK from"),
    "copies all": ("import os; SAVED = dict(os.environ)", "copies the environment"),
    "a thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "starts a thread",
    ),
    "a process": ("import subprocess; ONE = subprocess.Popen(['sleep', '0.2'])", "starts a process"),
    "a fork handler": ("import os; os.register_at_fork(after_in_child=lambda: 1 / 0)", "has a fork handler that fails: Zero"),
    "a fork handler before": ("import os; os.register_at_fork(before=lambda: 1 / 0)", "has a fork handler that fails: Zero"),
    "ends forks": (
        "import os; os.register_at_fork(after_in_child=lambda: os._exit(0))",
        "ends the processes that are forked after it",
    ),
    "an exit handler": ("import atexit; atexit.register(lambda: 1 / 0)", "has an exit handler that fails: ZeroDivisionError"),
    "removes a file": (
        "import atexit, os; open('made', 'w').close(); atexit.register(os.remove, 'made')",
        "has an exit handler that would act for each rank (os.remove)",
    ),
    "writes a file": (
        "import atexit; atexit.register(lambda: open('made', 'w'))",
        "has an exit handler that would act for each rank (open)",
    ),
    "hides that": (
        "import atexit, os\ndef end():\n  try: os.kill(0, 0)\n  except Exception: pass\natexit.register(end)",
        "has an exit handler that would act for each rank (os.kill)",
    ),
    "a temporary folder": (
        "import tempfile; ONE = tempfile.TemporaryDirectory()",
        "has an exit handler that would act for each rank",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_what_is_the_same_in_every_rank_is_kept(tmp_path: Path, text: str) -> None:
    said = judge(tmp_path, module=text)
    assert (said["seconds"], said["refused"], said["is_spoilt"]) == (["module"], [], False)


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_ranks_can_not_share_is_refused(
    tmp_path: Path, text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = judge(tmp_path, module=text)
    assert (said["seconds"], said["is_spoilt"]) == ([], True)
    ((name, why),) = said["refused"]
    assert name == "module"
    assert why.startswith(reason)
    assert (tmp_path / "made").exists() == (name == "removes a file" or "open('made', 'w').close()" in text)


def test_a_module_that_is_not_there_costs_nothing(tmp_path: Path) -> None:
    said = judge(tmp_path, "nowhere", "nowhere.deep", "fine", fine="")
    assert said["seconds"] == ["fine"]
    assert [why for _, why in said["refused"]] == ["can't be imported: No module named 'nowhere'"] * 2
    assert not said["is_spoilt"]


def test_a_refused_module_does_not_spoil_the_judgement_of_the_next(tmp_path: Path) -> None:
    bad = "import os, threading, time, subprocess\nos.environ['RANK']='1'\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\nONE = subprocess.Popen(['sleep', '1'])"
    said = judge(tmp_path, first="", bad=bad, last="import os; os.environ.get('HOME')")
    assert said["seconds"] == ["first", "last"]
    assert [name for name, _ in said["refused"]] == ["bad"]
    assert said["started"] == ["first", "bad", "last"]


def test_variables_that_imports_set_and_remove_are_known(tmp_path: Path) -> None:
    said = judge(
        tmp_path, module="import os; os.environ['GIVEN'] = '2'; os.environ['NEW'] = 'x'; del os.environ['GONE']"
    )
    assert said["changes"] == {"GIVEN": "2", "NEW": "x", "GONE": None}


def test_a_handler_that_does_not_end_is_refused(tmp_path: Path) -> None:
    text = "import atexit, preload, time; preload.TRIAL_TIME = 0.1; atexit.register(time.sleep, 600)"
    assert judge(tmp_path, module=text)["refused"] == [["module", "has an exit handler that does not end"]]
