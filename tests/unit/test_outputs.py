"""What is read from the output of well-known trainers: `tests/data/outputs`."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from engine.core.metrics.metric_lines import MetricReader
from engine.core.metrics.progress import RankProgress, take_lines

FOLDER = Path(__file__).resolve().parent.parent / "data" / "outputs"
FORMATS: list[dict[str, Any]] = tomllib.loads((FOLDER / "formats.toml").read_text())["format"]
NOTHING = (FOLDER / "nothing.txt").read_text().splitlines()
FIELDS = ("step", "steps", "epoch", "epochs", "epoch_step", "epoch_steps", "throughput", "unit", "aside")


@pytest.mark.parametrize("known", FORMATS, ids=[one["name"] for one in FORMATS])
def test_the_output_of_a_known_trainer_is_read(known: dict[str, Any]) -> None:
    progress, reader = RankProgress(), MetricReader()
    newest: dict[str, float | None] = {}
    for second, line in enumerate(known["lines"].splitlines()):
        for point in take_lines(0, progress, 1000.0 + second, reader.feed(line.encode() + b"\n")):
            newest[point.key] = point.value
    expected = {key: known[key] for key in FIELDS if key in known}
    found = {key: getattr(progress, key) for key in expected}
    others = known.get("others", {})
    assert found | {key: newest.get(key) for key in others} == pytest.approx(expected | others)
    loss = known.get("loss")
    if loss == "nan":
        assert progress.loss is not None
        assert math.isnan(progress.loss)
    else:
        assert progress.loss == loss
    assert progress.is_derived == known.get("derived", False)
    if "step" not in known:
        assert progress.step is None or "throughput" in known
    if "aside" not in known and "step" in known:
        assert progress.aside == ""


def test_the_table_is_large_enough() -> None:
    assert len({one["name"] for one in FORMATS}) >= 60
    assert len(set(NOTHING)) >= 20


@pytest.mark.parametrize("line", NOTHING)
def test_nothing_is_read_from_a_line_without_a_report(line: str) -> None:
    progress, reader = RankProgress(), MetricReader()
    points = take_lines(0, progress, 1000.0, reader.feed(line.encode() + b"\n"))
    assert points == []
    assert (progress.step, progress.steps, progress.epoch, progress.loss, progress.throughput) == (None,) * 5


FAST = {
    "tqdm": "\r{percent:3d}%|{bar:10s}| {step}/10 [00:01<00:10, 15.00it/s, loss={loss}]",
    "imagenet": "Epoch: [{epoch}][{step:4d}/10]\tTime  0.245 ( 0.245)\tLoss {loss} (6.1e+00)",
    "names": "epoch {epoch} step {step}/10 loss {loss}",
}


@pytest.mark.parametrize("size", [60, 5000, 8192, 100_000])
@pytest.mark.parametrize("line", FAST.values(), ids=FAST)
def test_steps_go_on_over_epochs_however_many_are_read_at_once(line: str, size: int) -> None:
    lines = [
        line.format(
            epoch=epoch, step=step, percent=step * 10, bar="#" * step, loss=f"{(epoch * 7 + step * 3) % 50 / 7:.4f}"
        )
        for epoch in range(200)
        for step in range(1, 11)
    ]
    text = ("\n".join(lines) + "\n").encode()
    progress, reader = RankProgress(), MetricReader()
    for at in range(0, len(text), size):
        take_lines(0, progress, 1000.0 + at, reader.feed(text[at : at + size]))
    assert (progress.step, progress.epoch_step) == (2000, 10)


@pytest.mark.parametrize("size", [60, 5000, 65_536])
def test_training_and_validation_that_take_turns_are_told_apart_however_many_are_read_at_once(size: int) -> None:
    lines = []
    for epoch in range(1, 101):
        lines.append(f"Epoch {epoch}/100")
        lines += [f"batch {step}/10 loss {5 / epoch + step / 100:.4f} lr 1.0e-04" for step in range(1, 11)]
        lines += [f"val batch {step}/5 loss {6 / epoch:.4f}" for step in range(1, 6)]
        lines.append(f"epoch {epoch} done, train loss {5 / epoch:.4f} val loss {6 / epoch:.4f}")
    text = ("\n".join(lines) + "\n").encode()
    progress, reader = RankProgress(), MetricReader()
    points = []
    for at in range(0, len(text), size):
        points += take_lines(0, progress, 1000.0 + at, reader.feed(text[at : at + size]))
    assert (progress.step, progress.steps, progress.epoch, progress.aside) == (1000, 1000, 100, "")
    lows = {key: min(one.value for one in points if one.key == key and one.value) for key in ("loss", "val_loss")}
    highs = {key: max(one.value for one in points if one.key == key and one.value) for key in ("loss", "val_loss")}
    assert lows == {"loss": 0.05, "val_loss": 0.06}
    assert highs == {"loss": 5.1, "val_loss": 6.0}


def test_lines_after_a_table_are_read_as_they_are() -> None:
    progress, reader = RankProgress(), MetricReader()
    text = b"step,loss,lr\n1,2.5,0.1\n2,2.25,0.1\ndone\nstep 3 loss 2.0\nstep 4 loss 1.5\n5,1.25,0.1\n"
    points = take_lines(0, progress, 1000.0, reader.feed(text))
    assert [one.value for one in points if one.key == "loss"] == [2.5, 2.25, 2.0, 1.5, 1.25]
    assert progress.step == 5
