"""Which count is that of the training, steps over epochs, and a throughput that nothing prints."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from engine.commands.cli import cli
from engine.core.metrics.lines.reader import MAX_NEW, MetricReader
from engine.core.metrics.progress import RankProgress
from engine.core.metrics.readings import take_lines
from engine.core.metrics.series import Point


def progress_of(*lines: str, progress: RankProgress | None = None) -> RankProgress:
    """After these lines, one each second."""
    progress = progress or RankProgress()
    points_of(progress, *lines)
    return progress


def points_of(progress: RankProgress, *lines: str) -> list[Point]:
    reader = MetricReader()
    return [
        point
        for second, line in enumerate(lines)
        for point in take_lines(0, progress, 100.0 + second, reader.feed(line.encode() + b"\n"))
    ]


def bar(title: str, count: int, total: int, postfix: str = "") -> str:
    return f"{title}{100 * count // total:3d}%|##| {count}/{total} [00:01<00:09, 5.00it/s{postfix}]"


def test_steps_go_on_over_epochs_and_their_points_too() -> None:
    progress = RankProgress()
    points = points_of(
        progress, *(f"Epoch {epoch}/3 [{count}/10] loss {epoch}" for epoch in (1, 2, 3) for count in (5, 10))
    )
    assert [point.step for point in points if point.key == "loss"] == [5, 10, 15, 20, 25, 30]
    assert (progress.step, progress.steps, progress.epoch_step, progress.epoch_steps) == (30, 30, 10, 10)


def test_a_count_that_begins_again_is_a_new_epoch_even_if_none_is_printed() -> None:
    progress = progress_of("step 1/3 loss 1", "step 2/3 loss 1", "step 3/3 loss 1", "step 1/3 loss 1")
    assert (progress.step, progress.steps, progress.epoch_step) == (4, None, 1)
    assert progress_of("step 0 loss 1", "step 5 loss 1", "step 10 loss 1", "step 0 loss 1").step == 15


def test_a_bar_that_is_set_back_before_it_gets_its_new_title_is_one_epoch() -> None:
    def epoch(number: int) -> list[str]:
        return [bar(f"Epoch {number}: ", count, 20, ", loss=1") for count in range(0, 21, 5)]

    set_back = bar("Epoch 0: ", 0, 20, ", loss=1"), bar("Epoch 1: ", 0, 20, ", loss=1")
    assert progress_of(*epoch(0), set_back[0]).step == 20
    progress = progress_of(*epoch(0), *set_back, *epoch(1), bar("Epoch 1: ", 0, 20, ", loss=1"), *epoch(2)[1:])
    assert (progress.step, progress.epoch_step) == (60, 20)


def test_the_last_steps_are_done_when_the_bar_of_the_epochs_is_full() -> None:
    def epoch(number: int) -> list[str]:
        return [bar("epochs:", number, 2), *(bar(f"epoch {number}: ", count, 40, ", loss=1") for count in (1, 20, 38))]

    progress = progress_of(*epoch(0), *epoch(1))
    assert progress.step == 78
    progress_of(bar("epochs:", 2, 2), progress=progress)
    assert (progress.step, progress.steps, progress.epoch_step) == (80, 80, 40)
    progress = progress_of(*epoch(0), *epoch(1)[:-2], bar("epochs:", 2, 2))
    assert progress.step == 41, "too few are known"


def test_steps_that_are_done_again_are_no_new_epoch() -> None:
    progress = progress_of("step 1/100 loss 1", "step 40/100 loss 1", "step 31/100 loss 1")
    assert (progress.step, progress.steps, progress.epoch_step) == (31, 100, None)


def test_the_next_attempt_counts_epochs_from_the_first() -> None:
    before = progress_of("Epoch 1/3 [10/10] loss 1", "Epoch 2/3 [5/10] loss 1")
    again = RankProgress(first_epoch=before.first_epoch)
    assert progress_of("Epoch 2/3 [1/10] loss 1", progress=again).step == 11


def test_an_evaluation_after_the_training_does_not_take_over() -> None:
    lines = [bar("", count, 100, ", loss=1") for count in range(1, 101)]
    lines += [bar("", count, 25, ", loss=1") for count in range(1, 25)]
    progress = progress_of(*lines)
    assert (progress.step, progress.steps, progress.aside) == (100, 100, "another bar 24/25")


def test_a_bar_without_a_title_that_does_not_advance_with_the_losses_is_another() -> None:
    lines = [bar("", 10, 375), "{'loss': 2.5, 'epoch': 0.1}", bar("", 20, 375), "{'loss': 2.4, 'epoch': 0.2}"]
    progress = progress_of(*lines, bar("", 0, 25), bar("", 12, 25))
    assert (progress.step, progress.steps, progress.aside) == (20, 375, "another bar 12/25")


def test_a_search_before_the_training_gives_way_to_it() -> None:
    lines = [bar("Finding the best lr: ", count, 20, ", loss=1") for count in range(1, 21)]
    lines += [bar("", count, 100, ", loss=1") for count in range(1, 41)]
    assert progress_of(*lines).step == 40


@pytest.mark.parametrize(
    "title", ["Loading shards: ", "Map: ", "Saving: ", "Sanity Checking: ", "Evaluating: ", "Validation: "]
)
def test_other_bars_never_move_the_step(title: str) -> None:
    progress = progress_of("step 7 loss 1", bar(title, 3, 9), bar(title, 4, 9))
    assert progress.step == 7
    assert progress.aside == f"{title[:-2].lower()} 4/9"
    assert progress_of(bar(title, 9, 9), progress=progress).aside == ""
    assert (progress.throughput, progress_of(bar(title, 3, 9)).step) == (None, None)


def test_a_throughput_is_derived_if_none_is_printed() -> None:
    progress = progress_of(*(f"step {10 * count} loss 1" for count in range(1, 6)))
    assert (progress.throughput, progress.unit, progress.is_derived) == (10.0, "it", True)
    progress_of("step 60 loss 1 300 samples/s", progress=progress)
    assert (progress.throughput, progress.unit, progress.is_derived) == (300.0, "samples", False)
    progress_of(*(f"step {10 * count} loss 1" for count in range(7, 12)), progress=progress)
    assert not progress.is_derived


def test_of_several_rates_the_one_that_says_most_is_the_throughput() -> None:
    progress = RankProgress()
    points = points_of(progress, "step 1 loss 1 2 it/s 64 samples/s 640 tokens/s", "step 2 loss 1 3 it/s")
    assert (progress.throughput, progress.unit) == (640.0, "tok")
    assert [(point.key, point.value) for point in points if point.key != "loss"] == [
        ("throughput", 640.0),
        ("it/s", 3.0),
    ]


def test_nan_and_infinities_are_values() -> None:
    points = points_of(RankProgress(), "step 1 loss nan grad_norm inf")
    assert [(point.key, point.value) for point in points] == [("loss", None), ("grad_norm", None)]


def test_steps_go_on_after_a_supervisor_has_read_its_progress_again() -> None:
    again = msgspec.json.decode(msgspec.json.encode(progress_of("Epoch 1 [2/9] loss 1")), type=RankProgress)
    assert progress_of("Epoch 2 [1/9] loss 1", progress=again).step == 10


def test_many_names_are_bounded() -> None:
    progress = RankProgress()
    points_of(
        progress, *(f"step 1 loss 1 name_{''.join(chr(97 + int(digit)) for digit in str(one))}=2" for one in range(200))
    )
    assert len(progress.keys) <= 65
    for one in range(200):
        progress_of(f"{chr(97 + one % 26) * (1 + one // 26)} run: " + bar("", 1, 2), progress=progress)
    assert len(progress.counters) <= 32


def test_of_a_flood_of_texts_that_differ_the_last_is_read() -> None:
    text = "".join(
        f"step {one} loss 1 item {''.join(chr(97 + int(digit)) for digit in str(one))}\n" for one in range(900)
    )
    lines = MetricReader().feed(text.encode())
    assert len(lines) <= MAX_NEW + 900 // 50 + 1
    assert lines[-1].step == 899


def test_metrics_shows_what_is_read() -> None:
    text = "Epoch 1/5\n 10/100 [==>...] - loss: 2.5\r\n" + bar("Map: ", 4, 10) + "\nhello\n"
    shown = CliRunner().invoke(cli, ["metrics", "--try", "-"], input=text)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[1::2] == [
        *("    epoch 1/5", "    step 10/100, loss = 2.5", "    Map: step 4/10, not the training's", "    nothing")
    ]
    found = json.loads(CliRunner().invoke(cli, ["metrics", "--try", "-", "--json"], input=text).stdout)
    assert [line["read"]["counts"] for line in found["lines"] if line["read"]] == ["nothing", "training", "Map"]
    assert (found["end"]["step"], found["end"]["steps"], found["end"]["loss"]) == (10, 500, 2.5)


def test_a_pattern_that_takes_too_long_is_told_and_left_out(tmp_path: Path) -> None:
    patterns = r"""metrics.patterns = ['(a+)+(?P<bad>\d)$', 'acc{1} (?P<acc>\S+)']"""
    profile = tmp_path / "p.toml"
    profile.write_text(f"schema = 1\nname = 'p'\nrecipe.name = 'gpt'\n{patterns}\n")
    text = "a" * 60_000 + "!\nacc 0.5 step 1\n" + "a" * 60_000 + "!\n"
    shown = CliRunner().invoke(cli, ["metrics", "--try", "-", str(profile), "--json"], input=text)
    assert shown.stderr == "metrics.patterns: '(a+)+(?P<bad>\\\\d)$' takes too long, and is not used\n"
    assert json.loads(shown.stdout)["lines"][1]["read"]["metrics"] == {"acc": 0.5}
