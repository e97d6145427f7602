"""Which checkpoints the agent finds at the end of an attempt, and which are torn; what the run says about them."""

import json
import os
import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.core.run.events import Checkpoint, CheckpointsFound, Found
from engine.core.run.machine import step
from engine.core.run.state import Clearing, Outcome, Restart, RunState
from engine.core.views.saved import saved_view
from engine.node.programs.checkpoints import find, item_of
from tests.run_story import Story
from tests.support import from_table, rows

NOW = 1e9


def write(path: Path, kind: str, age: float = 0.0) -> None:
    """Writes a file of a checkpoint. `kind`: `zip`, `safetensors` or other bytes; with `-` before it, one that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data", os.urandom(200))
    elif kind.endswith("safetensors"):
        header = json.dumps({"weight": {"data_offsets": [0, 200]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(200))
    else:
        path.write_bytes(kind.encode() * 50)
    if kind[0] == "-":
        path.write_bytes(path.read_bytes()[:150])
    os.utime(path, (NOW - age, NOW - age))


def look(folder: Path, *, written: tuple[str, ...] = (), killed: bool = True, set_aside: bool = False) -> Any:
    places = {
        "folder": str(folder),
        "checkpoints": str(folder / "own"),
        "argv": ["train.py", "--to=out"],
        "begun": NOW - 300,
    }
    paths = [str(folder / one) for one in written]
    answer = find(places=places, written=paths, ended=NOW, killed=killed, set_aside=set_aside)
    names = {key: answer[key]["name"] if answer.get(key) else "" for key in ("newest", "torn")}
    return {**names, "lack": answer.get("lack", ""), "moved": answer.get("moved", "")}


@pytest.mark.parametrize(("files", "expected"), rows("unit/checkpoints", "files"))
def test_the_newest_checkpoint_and_a_torn_one(tmp_path: Path, files: list[tuple[str, str]], expected: dict[str, str]):
    for age, (name, kind) in enumerate(reversed(files)):
        write(tmp_path / name, kind, age * 20)
    assert look(tmp_path) == {"newest": "", "torn": "", "lack": "", "moved": "", **expected}


def test_a_program_that_ended_by_itself_has_written_what_it_wanted(tmp_path: Path) -> None:
    for age, files in enumerate((["a.pt"], ["a.pt", "b.pt"])):
        for name in files:
            write(tmp_path / f"step_{2 - age}" / name, "zip", age * 20)
    assert look(tmp_path, killed=False)["newest"] == "step_2"
    assert look(tmp_path)["torn"] == "step_2"


@pytest.mark.parametrize(
    ("place", "written", "moved"), [("out", (), True), ("other", (), False), ("other", ("other/step_2.pt",), True)]
)
def test_only_a_checkpoint_of_this_run_is_set_aside(tmp_path: Path, place: str, written: tuple[str, ...], moved: bool):
    write(tmp_path / place / "step_1.pt", "zip", 20)
    write(tmp_path / place / "step_2.pt", "-zip")
    found = look(tmp_path, written=written, set_aside=True)
    assert (found["torn"], found["moved"]) == (f"{place}/step_2.pt", "step_2.pt.torn" if moved else "")
    assert (tmp_path / place / "step_2.pt.torn").exists() is moved
    again = look(
        tmp_path, written=written, set_aside=True
    )  # the process that set it aside may have died before it told
    assert again == {**found, "lack": "it is not finished" if moved else found["lack"]}
    assert again["newest"] == f"{place}/step_1.pt"


def test_a_count_of_lightning_is_no_step(tmp_path: Path) -> None:
    write(tmp_path / "hpc_ckpt_1.ckpt", "zip")
    places = {"folder": str(tmp_path), "checkpoints": "", "argv": [], "begun": NOW}
    assert find(places=places, written=[], ended=NOW, killed=False, set_aside=False)["newest"]["step"] is None


@from_table
def test_the_checkpoint_of_a_file(path: str, item: str) -> None:
    assert item_of(path) == item


def clearing(then: Outcome | Restart | None = None) -> RunState:
    then = then or Outcome(word="stopped", reason="stopped by alice")
    return replace(Story().run().state, phase=Clearing(then=then), attempt_since=NOW - 1000)


@pytest.mark.parametrize(("found", "last", "words"), rows("unit/checkpoints", "words"))
def test_what_the_run_says(found: dict[str, Any], last: int | None, words: str | None) -> None:
    told: dict[str, Any] = {
        key: Checkpoint(**value) if isinstance(value, dict) else value for key, value in found.items()
    }
    event = CheckpointsFound(at=NOW, attempt=0, found=Found(**told), step=last)
    state = step(clearing(), event)[0]
    view = saved_view(state)
    assert (view.words if view else None) == words
    assert step(state, event)[0] is state, "once for each attempt"


def test_an_exception_of_an_attempt_whose_checkpoint_was_set_aside_withholds_no_restart() -> None:
    state = replace(clearing(Restart(reason="")), failed_at=("ValueError at train.py:3", None))
    event = CheckpointsFound(at=time.time(), attempt=0, found=Found(moved="step_2.torn"))
    assert step(state, event)[0].failed_at is None
