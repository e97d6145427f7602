"""What modules do when they are imported before the fork decides whether a template keeps them. No torch is needed for that."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.node import preload
from tests.support import entries

JUDGE = entries("agent/preload", "judge")


def judge(folder: Path, *names: str, **modules: str) -> dict[str, Any]:
    """What comes of importing `names`, or else all `modules`: their text by name."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    argv = [sys.executable, "-I", "-c", JUDGE, str(folder), str(Path(preload.__file__).parent), *(names or modules)]
    environment = {"PATH": "/bin", "GIVEN": "1", "GONE": "1"}
    said = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment).stdout
    result: dict[str, Any] = json.loads(said)
    return result


KEPT = entries("agent/preload", "kept")

REFUSED = entries("agent/preload", "refused")


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_what_is_the_same_in_every_rank_is_kept(tmp_path: Path, text: str) -> None:
    said = judge(tmp_path, module=text)
    assert (said["seconds"], said["refused"], said["is_spoilt"]) == (["module"], [], False)


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_ranks_can_not_share_is_refused(tmp_path: Path, text: str, reason: str, monkeypatch: pytest.MonkeyPatch):
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
