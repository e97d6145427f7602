"""What is read from the output of programs: `tests/data/outputs`, whose README has the schema."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from engine.core.metrics.lines.reader import MetricReader
from engine.core.metrics.progress import RankProgress
from engine.core.metrics.readings import take_lines

FOLDER = Path(__file__).resolve().parent.parent / "data" / "outputs"
CASES: list[dict[str, Any]] = [
    case for file in sorted(FOLDER.glob("*.toml")) for case in tomllib.loads(file.read_text())["case"]
]
EXACT = [case for case in CASES if "exact" in case]
LABELLED = [case for case in CASES if "expected" in case]
NOTHING = (FOLDER / "nothing.txt").read_text().splitlines()
FIELDS = ("step", "steps", "epoch", "epochs", "epoch_step", "epoch_steps", "throughput", "unit", "aside")

UNREAD = {
    "spacy-train": "the names of the columns are not in the text",
    "rl-games": "only epochs are counted; their number is not a number of steps",
}
"""Cases of which something is not read, and why. Nothing may be read wrongly."""


def end_of(text: str, seconds: float = 0.0) -> tuple[RankProgress, dict[str, float | None]]:
    """What is known at the end of an output, and the newest value of each curve. `seconds`: between two lines."""
    progress, reader = RankProgress(), MetricReader()
    newest: dict[str, float | None] = {}
    for number, line in enumerate(re.split(r"\r\n|[\r\n]", text.removesuffix("\n"))):
        for point in take_lines(0, progress, 1000.0 + seconds * number, reader.feed(line.encode() + b"\n")):
            newest[point.key] = point.value
    return progress, newest


@pytest.mark.parametrize("known", EXACT, ids=[one["id"] for one in EXACT])
def test_the_output_of_a_known_trainer_is_read(known: dict[str, Any]) -> None:
    progress, newest = end_of(known["lines"], seconds=1.0)
    known = known["exact"]
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


def is_close(got: float, wanted: float | str, tolerance: float) -> bool:
    return str(got) == wanted if isinstance(wanted, str) else abs(got - wanted) <= tolerance * max(abs(wanted), 1e-9)


def judge(case: dict[str, Any], progress: RankProgress) -> tuple[list[str], list[str]]:
    """What is wrong, and what is missing."""
    wrong, missing, expected = [], [], case["expected"]
    pairs = {"step": "epoch_step", "steps": "epoch_steps"}
    got = {
        key: [value for name in (key, pairs.get(key, key)) if (value := getattr(progress, name)) is not None]
        for key in ("step", "steps", "epoch", "epochs", "loss", "throughput")
    }
    for key in expected:
        wanted = expected[key] if isinstance(expected[key], list) else [expected[key]]
        if not got[key]:
            missing += [] if key in case.get("optional", ()) else [key]
        elif key == "throughput":
            rates = [one if isinstance(one, list) else [one, ""] for one in wanted]
            if not any(is_close(got[key][0], rate, 0.03) and unit in ("", progress.unit) for rate, unit in rates):
                wrong.append(f"throughput {got[key][0]} {progress.unit}")
        elif not any(is_close(value, one, 0.002) for value in got[key] for one in wanted):
            wrong.append(f"{key} {got[key]}")
    wrong += [f"{key} {got[key]}" for key in case.get("absent", ()) if got[key]]
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", case["lines"])
    for name in case.get("never", ()):
        numbers = re.findall(re.escape(name) + r"[\s:=|>]{0,40}([-+]?\d[\d,_]*\.?\d*(?:[eE][-+]?\d+)?)", plain)
        values = {float(number.replace(",", "").replace("_", "")) for number in numbers}
        wrong += [
            f"{key} is the number of {name}"
            for key in ("loss", "step", "throughput")
            if key not in expected and got[key] and got[key][0] in values
        ]
    return wrong, missing


@pytest.mark.parametrize("case", LABELLED, ids=[one["id"] for one in LABELLED])
def test_the_numbers_of_an_output_are_right_or_not_shown(case: dict[str, Any]) -> None:
    progress, _ = end_of(case["lines"])
    wrong, missing = judge(case, progress)
    assert wrong == []
    assert bool(missing) == (case["id"] in UNREAD), missing


@pytest.mark.parametrize("size", [40, 1 << 20])
def test_how_much_is_read_at_once_changes_nothing(size: int) -> None:
    differs = []
    for case in CASES:
        progress, reader = RankProgress(), MetricReader()
        data = case["lines"].encode() + b"\n"
        for at in range(0, len(data), size):
            take_lines(0, progress, 1000.0, reader.feed(data[at : at + size]))
        by_line, _ = end_of(case["lines"])
        names = [name for name in (*FIELDS, "loss") if name != "aside"]
        if str([getattr(progress, name) for name in names]) != str([getattr(by_line, name) for name in names]):
            differs.append(case["id"])
    assert differs == []


def test_the_table_is_large_enough() -> None:
    assert len({one["id"] for one in CASES}) == len(CASES) >= 460
    assert len(set(NOTHING)) >= 20
    assert UNREAD.keys() <= {one["id"] for one in LABELLED}


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
