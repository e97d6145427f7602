"""Event files of TensorBoard: what its writer has written, read in pieces, damaged and foreign files, and what becomes of their scalars."""

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.metrics.event_records import MAX_RECORD, Scalar, complete_size, scalars
from engine.core.metrics.lines.names import Names
from engine.core.metrics.lines.reader import MetricReader
from engine.core.metrics.progress import RankProgress
from engine.core.metrics.readings import take_lines, take_scalars
from engine.core.metrics.series import Point

RECORDED = Path(__file__).resolve().parent.parent / "data" / "event_files" / "tensorboard"
"""Written by tests/programs/scripts/write_events.py with tensorboard 2.21.0."""

WRITTEN = [
    one
    for step in range(1, 6)
    for one in (("train/loss", step, round(2.0 / step, 6), 1000.0 + step), ("accuracy", step, step / 8, 1000.0 + step))
]


def test_the_scalars_of_the_real_writer_are_read_and_nothing_else() -> None:
    data = RECORDED.read_bytes()
    assert complete_size(data) == (len(data), 0)
    found = list(scalars(data))
    assert [(one.tag, one.step, round(one.value, 6), one.at) for one in found[:10]] == WRITTEN
    assert math.isnan(found[10].value)
    assert (found[10].tag, found[10].step) == ("train/loss", 6)
    assert found[11:] == [Scalar(1007.0, -1, "val/loss", 0.5)]


@given(st.integers(1, 400))
def test_a_file_that_is_read_while_it_grows_gives_the_same(size: int) -> None:
    data, rest, found = RECORDED.read_bytes(), b"", list[Scalar]()
    for begin in range(0, len(data), size):
        rest += data[begin : begin + size]
        whole, _ = complete_size(rest)
        found += scalars(rest[:whole])
        rest = rest[whole:]
    assert rest == b""
    assert repr(found) == repr(list(scalars(data)))


@given(st.binary(max_size=300), st.integers(0, 2000), st.binary(max_size=8))
def test_damaged_records_are_skipped(message: bytes, place: int, damage: bytes) -> None:
    record = struct.pack("<QI", len(message), 0) + message + bytes(4)
    list(scalars(record))
    data = bytearray(RECORDED.read_bytes())
    data[place : place + len(damage)] = damage
    try:
        whole, _ = complete_size(bytes(data))
    except ValueError:
        return
    list(scalars(bytes(data[:whole])))


def test_a_length_that_can_not_be_true_is_refused() -> None:
    with pytest.raises(ValueError, match="a record of"):
        complete_size(struct.pack("<QI", MAX_RECORD + 1, 0))


# --- what becomes of them ----------------------------------------------------------------------------------------------


def take(progress: RankProgress, *found: tuple[str, int, float], names: Names = Names()) -> list[Point]:  # noqa: B008 - frozen
    given = [Scalar(100.0 + place, step, tag, value) for place, (tag, step, value) in enumerate(found)]
    return take_scalars(0, progress, given, names, 1e9)


def test_a_last_value_that_is_printed_does_not_hide_the_curve_of_the_file() -> None:
    reader, progress = MetricReader(), RankProgress()
    take_lines(0, progress, 90.0, reader.feed(b"wandb: train/loss 0.2\n"))
    points = take(progress, *(("train/loss", 10 * count, 1.0 / count) for count in range(1, 6)))
    assert [(one.step, one.value) for one in points if one.key == "loss"] == [(10 * n, 1.0 / n) for n in range(1, 6)]
    for value in (b"0.2", b"0.3"):
        take_lines(0, progress, 91.0, reader.feed(b"loss: 0.1 train/acc: " + value + b"\n"))
    assert [point for point in take(progress, ("train/acc", 60, 0.5)) if point.key == "train/acc"] == []


def test_steps_losses_and_a_derived_throughput_come_from_the_file_of_a_silent_rank() -> None:
    progress = RankProgress()
    points = take(progress, *(("train/loss", 10 * count, 1.0 / count) for count in range(1, 6)), ("train/acc", 50, 0.9))
    assert [(one.key, one.step) for one in points if one.key == "loss"] == [("loss", 10 * n) for n in range(1, 6)]
    assert (progress.step, progress.loss, progress.throughput, progress.is_derived) == (50, 0.2, 10.0, True)
    assert "train/acc" in progress.keys


def test_steps_of_a_file_are_those_of_the_run_also_where_they_are_done_again() -> None:
    progress = RankProgress()
    take(progress, *(("train/loss", 10 * count, 1.0) for count in range(1, 5)))
    points = take(progress, ("train/loss", 10, 2.0), ("train/loss", 20, 2.0))
    assert [(point.key, point.step) for point in points if point.key == "loss"] == [("loss", 10), ("loss", 20)]
    assert (progress.step, progress.epoch_step) == (20, None)


def test_a_bar_that_begins_is_not_replaced_by_the_states_of_the_trainer() -> None:
    reader, progress = MetricReader(), RankProgress()
    take_lines(0, progress, 90.0, reader.feed(b" 50%|#####     | 20/40 [00:01<00:01, 9.00it/s]\r"))
    take_scalars(0, progress, [Scalar(100.0, 20, "loss", 1.0)], Names(), 1e9, is_echo=True)
    take_lines(0, progress, 91.0, reader.feed(b" 75%|#######   | 30/40 [00:02<00:01, 9.00it/s]\r"))
    assert (progress.step, progress.steps) == (30, 40)


def test_a_validation_that_is_written_with_its_epoch_does_not_move_the_step() -> None:
    progress = RankProgress()
    points = take(progress, ("loss", 100, 1.0), ("val_loss", 1, 2.0), ("epoch", 100, 1.0), ("loss", 200, 0.5))
    assert progress.step == 200
    assert [(point.key, point.step) for point in points] == [("loss", 100), ("val_loss", 100), ("loss", 200)]


def test_what_is_printed_is_not_taken_from_the_file() -> None:
    progress = RankProgress()
    take_lines(0, progress, 1.0, MetricReader().feed(b"".join(b"step %d/100 loss 3.0\n" % n for n in (5, 6, 7))))
    points = take(progress, ("train/loss", 70, 1.0), ("train/acc", 70, 0.5))
    assert [(point.key, point.step) for point in points] == [("train/acc", 7)]
    assert (progress.step, progress.loss) == (7, 3.0)


def test_what_is_in_the_file_before_it_is_printed_is_stored_once() -> None:
    reader, progress = MetricReader(), RankProgress()
    found = take(progress, *(("train/loss", step, 1 / step) for step in range(1, 31)))
    lines = [b"step %d/100 loss %.4f\n" % (step, 1 / step) for step in range(1, 61)]
    found += take_lines(0, progress, 200.0, reader.feed(b"".join(lines[:40])))
    found += take(progress, *(("train/loss", step, 1 / step) for step in range(31, 61)))
    found += take_lines(0, progress, 201.0, reader.feed(b"".join(lines[40:])))
    steps = [point.step or 0 for point in found if point.key == "loss"]
    assert sorted(set(steps)) == sorted(steps) == [step for step in range(1, 61) if step not in (31, 32)]
    assert (progress.step, progress.steps, progress.aside) == (60, 100, "")
    assert progress.loss == 0.0167


def test_a_value_that_is_printed_at_the_end_is_stored_once_and_hides_no_rest_of_the_file() -> None:
    reader, progress = MetricReader(), RankProgress()
    found = take(progress, *(("train/acc", step, step / 100) for step in range(1, 31)), ("train/loss", 30, 1.0))
    found += take_lines(0, progress, 200.0, reader.feed(b"step 60/60 loss 0.5 train/acc 0.6\n"))
    found += take(progress, *(("train/acc", step, step / 100) for step in range(31, 61)))
    assert [point.value for point in found if point.key == "train/acc"] == [step / 100 for step in range(1, 61)]


def test_names_of_a_file_and_of_the_output_may_differ_in_their_slashes() -> None:
    reader, progress = MetricReader(), RankProgress()
    lines = [b"step %d/9 loss 1 eval_accuracy: 0.%d\n" % (step, step) for step in range(1, 9)]
    found = take_lines(0, progress, 1.0, reader.feed(b"".join(lines)))
    found += take(progress, *(("eval/accuracy", step, step / 10) for step in range(1, 9)))
    assert [point.key for point in found if "accuracy" in point.key] == ["eval_accuracy"] * 8


@pytest.mark.parametrize("is_late", [True, False])
def test_the_last_bar_of_a_program_that_was_silent_does_not_win(is_late: bool) -> None:
    progress = RankProgress()
    bar = "Epoch 2/2  ━━━━━━━━━━━━━━━━ 20/20 0:00:00 • 0:00:00 123.99it/s train_loss: 0.352\n"
    if not is_late:
        take_lines(0, progress, 1.0, MetricReader().feed(bar.encode()))
    take(progress, *((tag, step, 0.5) for step in range(1, 61) for tag in ("train_loss", "train_acc")))
    if is_late:
        take_lines(0, progress, 1.0, MetricReader().feed(bar.encode()))
    assert (progress.step, progress.steps, progress.loss) == (60, None, 0.352 if is_late else 0.5)


def test_names_of_the_profile_count_for_files_too() -> None:
    progress = RankProgress()
    take(progress, ("objective", 3, 4.0), ("noise", 3, 1.0), names=Names(loss="objective", ignore=("noise",)))
    assert (progress.step, progress.loss, sorted(progress.keys)) == (3, 4.0, ["loss"])
