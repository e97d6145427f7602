"""What the Trainer keeps with its checkpoints is read once, up to the newest checkpoint of this run."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest

from engine.runs.foreign import trainer_states
from engine.runs.foreign.event_files import find_files, read_new

LAUNCHED = 1000.0


def save(path: Path, step: int, at: float, **more: object) -> Path:
    """Writes a state as the Trainer does, which logs every two steps."""
    logs: list[object] = [{"epoch": 0.5, "loss": 1 / s, "learning_rate": 0.1, "step": s} for s in range(2, step + 1, 2)]
    logs.append({"eval_loss": 3.0, "eval_runtime": 0.5, "eval_steps_per_second": 9.0, "epoch": 0.5, "step": step})
    path.mkdir(parents=True, exist_ok=True)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": logs, **more}))
    os.utime(path / "trainer_state.json", (at, at))
    os.utime(path, (at, at))
    return path / "trainer_state.json"


def losses(path: Path, after: int) -> list[tuple[int, float]]:
    return [(one.step, one.at) for one in read_new(path, after)[0] if one.tag == "loss"]


def test_each_checkpoint_tells_what_is_new(tmp_path: Path) -> None:
    out = tmp_path / "out"
    save(out / "checkpoint-4", 4, 1010.0)
    (path,) = find_files(tmp_path, {41: 0, 42: 1}, LAUNCHED, 60.0)
    found, step = read_new(path, 0)
    assert {one.tag for one in found} == {"loss", "learning_rate", "eval_loss"}
    assert (losses(path, 0), step) == ([(2, 1010.0), (4, 1010.0)], 4)
    assert read_new(path, 4) == ([], 4)
    (out / "checkpoint-8").mkdir()
    assert read_new(path, 4) == ([], 4), "it is not whole"
    save(out / "checkpoint-8", 8, 1030.0)
    assert losses(path, 4) == [(6, 1020.0), (8, 1030.0)]
    save(out, 10, 1040.0)
    assert losses(path, 8) == [(10, 1040.0)]
    assert list(find_files(tmp_path, {}, LAUNCHED, 60.0)) == [path]


def test_checkpoints_of_an_earlier_run_are_left_out(tmp_path: Path) -> None:
    save(tmp_path / "checkpoint-500", 500, 900.0)
    save(tmp_path, 500, 901.0)
    assert find_files(tmp_path, {}, LAUNCHED, 60.0) == {}
    save(tmp_path / "checkpoint-4", 4, 1010.0)
    (path,) = find_files(tmp_path, {}, LAUNCHED, 60.0)
    assert losses(path, 0) == [(2, 1010.0), (4, 1010.0)]
    assert read_new(path, 4) == ([], 4)


def test_times_lie_between_those_of_checkpoints(tmp_path: Path) -> None:
    save(tmp_path / "checkpoint-4", 4, 1010.0)
    save(tmp_path / "checkpoint-8", 8, 1030.0)
    save(tmp_path / "checkpoint-12", 12, 1050.0)
    (path,) = find_files(tmp_path, {}, LAUNCHED, 60.0)
    assert losses(path, 0) == [(2, 1010.0), (4, 1010.0), (6, 1020.0), (8, 1030.0), (10, 1040.0), (12, 1050.0)]


def test_a_state_of_another_training_in_the_folder_is_not_taken(tmp_path: Path) -> None:
    save(tmp_path / "out" / "checkpoint-4", 4, 1010.0)
    save(tmp_path / "twin" / "out" / "checkpoint-4", 4, 1010.0)
    own = tmp_path / "out" / "trainer_state.json"
    for named in (("--output_dir", "out"), ("--output_dir=out",), (str(tmp_path / "out"), ".", "/")):
        assert find_files(tmp_path, {}, LAUNCHED, 60.0, named) == {own: 0}
    for unclear in ((), ("--output_dir", "other"), ("out", "twin"), (".", str(tmp_path), "/")):
        assert find_files(tmp_path, {}, LAUNCHED, 60.0, unclear) == {}, unclear
    shutil.rmtree(tmp_path / "twin")
    assert find_files(tmp_path, {}, LAUNCHED, 60.0) == {own: 0}
    assert find_files(tmp_path, {}, LAUNCHED, 60.0, ("--lr", "1")) == {own: 0}
    for elsewhere in (("--output_dir", "later"), ("--output-dir=later",), ("train.output_dir=later",)):
        assert find_files(tmp_path, {}, LAUNCHED, 60.0, elsewhere) == {}, "that of another training"


def test_a_state_may_hold_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(
        tmp_path, 4, 1010.0, log_history=[7, {"loss": True, "step": 3}, {"loss": 1, "step": "x"}, {"train_runtime": 1}]
    )
    assert read_new(path, 0) == ([], 4)
    odd = [{"loss": math.nan, "step": 1}, {"loss": 10**400, "step": 2}, {"name" * 20: 1, "step": 2}]
    path = save(tmp_path, 4, 1011.0, log_history=odd)
    assert [one.value for one in read_new(path, 0)[0]] == pytest.approx([math.nan, math.inf], nan_ok=True)
    for number, text in enumerate((b"[1]", b'{"log_history": 1}', b'{"global_step": 4', b"[" * 100_000, b"\xff")):
        path.write_bytes(text)
        os.utime(path, (1012.0 + number,) * 2)
        assert read_new(path, 0) == ([], 0)
    monkeypatch.setattr(trainer_states, "MAX_SIZE", 3)
    path.write_bytes(b"long")
    with pytest.raises(ValueError, match="more than 3 bytes"):
        read_new(path, 0)
