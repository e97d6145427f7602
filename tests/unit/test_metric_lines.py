"""What `MetricReader` takes from plain output, whatever the framework, and that no output can hurt it."""

import itertools
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.metrics.lines.formats import Line, LineFormats
from engine.core.metrics.lines.names import Names
from engine.core.metrics.lines.reader import MAX_LINE, MetricReader
from engine.core.metrics.progress import RankProgress
from engine.core.metrics.readings import take_lines
from tests.support import entries, from_table, rows

ProgramOutput = list[tuple[str, int | None, float]]


def told(lines: list[Line]) -> ProgramOutput:
    """What lines say, one after the other: the total number of steps, the metrics, or the step of a line that has nothing else."""
    found: ProgramOutput = []
    for line in lines:
        found += [("steps", line.step, float(line.steps))] if line.steps is not None else []
        found += [(key, line.step, value) for key, value in line.values.items()]
        found += [("step", line.step, float(line.step))] if line.step is not None and not line.values else []
    return found


def read(text: str | bytes, *patterns: str) -> ProgramOutput:
    data = text.encode() if isinstance(text, str) else text
    return told(MetricReader(patterns).feed(data + b"\n"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *rows("unit/metric_lines", "a_loss_is_read_however_it_is_written"),
        ("loss=inf", [("loss", None, math.inf)]),
        ("loss=-inf", [("loss", None, -math.inf)]),
    ],
)
def test_a_loss_is_read_however_it_is_written(line: str, said: ProgramOutput) -> None:
    assert read(line) == [tuple(one) for one in said]


@from_table
def test_the_loss_on_held_out_data_is_not_taken_for_the_loss(line: str, said: ProgramOutput) -> None:
    assert read(line) == [tuple(one) for one in said]


@from_table
def test_a_line_that_says_no_metric_gives_none(line: str) -> None:
    assert read(line) == []


@from_table
def test_the_step_of_a_line_belongs_to_its_metrics(line: str, step: int | None, steps: int | None) -> None:
    said = read(line)
    assert ("loss", step, 1.0) in said
    assert [value for key, _, value in said if key == "steps"] == ([] if steps is None else [steps])


@from_table
def test_rates_are_read_with_their_unit(line: str, said: ProgramOutput) -> None:
    assert read(line) == [tuple(one) for one in said]


@from_table
def test_lines_of_known_programs_are_read(line: str, said: ProgramOutput) -> None:
    assert read(line) == [tuple(one) for one in said]


@pytest.mark.parametrize("word", ["nan", "NaN", "NAN"])
def test_a_loss_that_is_no_number_is_reported_as_such(word: str) -> None:
    ((key, step, value),) = read(f"step 3 loss: {word}")
    assert (key, step) == ("loss", 3)
    assert math.isnan(value)


@pytest.mark.parametrize("key", ["loss", "val_loss", "grad_norm", "score", "depth"])
def test_a_value_may_have_a_multiple(key: str) -> None:
    """As nanotron writes all of its numbers."""
    lines = [f"step: 5 | {key}: {value}" for value in ("1.25K", "1.5K", "2.5M", "3m")]
    found = MetricReader().feed("".join(f"{line}\n" for line in lines).encode())
    assert [line.values[key] for line in found] == [1250.0, 1500.0, 2.5e6, 3.0]


def test_progress_bars_end_their_lines_with_a_carriage_return() -> None:
    reader = MetricReader()
    assert reader.feed(b"\r 1/9 batches, 3.5it/s") == []
    assert told(reader.feed(b"\r 2/9 batches, 4.5it/s")) == [("steps", 1, 9.0), ("it/s", 1, 3.5)]
    assert told(reader.feed(b"\n")) == [("steps", 2, 9.0), ("it/s", 2, 4.5)]


def test_a_bar_that_is_drawn_over_another_one_is_read_as_soon_as_it_is_whole() -> None:
    reader = MetricReader()
    assert told(reader.feed(b"\r 1/9 [00:01<00:09, 3.5it/s]")) == [("steps", 1, 9.0), ("it/s", 1, 3.5)]
    assert reader.feed(b"\r 2/9 [00:01<00:09, ") == []
    assert told(reader.feed(b"4.5it/s]   ")) == [("steps", 2, 9.0), ("it/s", 2, 4.5)]
    assert reader.feed(b"\n") == []
    assert reader.feed(b"3/9 [00:02<00:08, 3.5it/s]") == [], "the first drawing of a bar, or a line that goes on"
    assert told(reader.feed(b"\r")) == [("steps", 3, 9.0), ("it/s", 3, 3.5)]


# --- what the user names ---------------------------------------------------------------------------------------------


@from_table
def test_text_is_read_as_the_profile_says(text: str, asked: dict[str, Any], said: ProgramOutput) -> None:
    """`asked`: `patterns`, and the names of `loss` and `step`, and what to `ignore`."""
    names = {name: asked[name] for name in ("loss", "step") if name in asked}
    formats = LineFormats(Names(**names, ignore=tuple(asked.get("ignore", ()))))
    reader = MetricReader(tuple(asked.get("patterns", ())), formats)
    assert told(reader.feed(text.encode() + b"\n")) == [tuple(one) for one in said]


@from_table
def test_a_pattern_may_name_any_metric(key: str) -> None:
    progress = RankProgress(unit="tok")
    points = take_lines(0, progress, 1.0, MetricReader((rf"@@ (?P<{key}>\d+)",)).feed(b"@@ 8\n"))
    found = {"loss": progress.loss, "step": progress.step, "steps": progress.steps, "epoch": progress.epoch}
    assert {word: value for word, value in found.items() if value is not None} == ({key: 8.0} if key in found else {})
    if key not in ("step", "steps", "epoch"):
        assert [point.value for point in points] == [8.0]


@from_table
def test_a_group_of_a_pattern_may_be_a_throughput(group: str, unit: str) -> None:
    progress = RankProgress()
    points = take_lines(0, progress, 1.0, MetricReader((rf"@@ (?P<{group}>\S+)",)).feed(b"@@ 1,512.5\n"))
    assert (progress.throughput, progress.unit) == (1512.5, unit)
    assert [(point.key, point.value) for point in points] == [("throughput", 1512.5)]


def test_a_pattern_of_a_throughput_wins_over_a_rate_of_the_line() -> None:
    progress = RankProgress()
    take_lines(
        0, progress, 1.0, MetricReader((r"eff=(?P<tokens>\d+)",)).feed(b"step 1 loss 2 9 it/s 8 tokens/s eff=7\n")
    )
    assert (progress.throughput, progress.unit) == (7.0, "tok")


# --- chunks ----------------------------------------------------------------------------------------------------------

SAMPLE = (
    "step 1/9 loss=3.5 lr=1e-3\r\n\x1b[31mstep 2: loss nan\x1b[0m\n\r 12%|█▏| 12/100 [00:01<00:09, 3.5it/s]\r\n"
    "{'loss': '2.31', 'learning_rate': '5e-05'}\n812 tokens/s, val_loss: 2\nnothing\n"
).encode()


@given(st.lists(st.integers(0, len(SAMPLE)), max_size=20))
@settings(deadline=None)
def test_where_a_chunk_ends_makes_no_difference(cuts: list[int]) -> None:
    whole = MetricReader().feed(SAMPLE)
    reader = MetricReader()
    edges = [0, *sorted(cuts), len(SAMPLE)]
    pieces = [one for begin, end in itertools.pairwise(edges) for one in reader.feed(SAMPLE[begin:end])]
    assert repr(pieces) == repr(whole)
    assert len(told(whole)) == 10


def test_a_line_without_end_is_given_up_and_the_next_one_is_read() -> None:
    reader = MetricReader()
    for _ in range(100):
        assert reader.feed(b"loss=1 " * 1000) == []
        assert len(reader._unfinished) <= MAX_LINE
    assert told(reader.feed(b"loss=2\nloss=3\n")) == [("loss", None, 3.0)]


def test_a_line_of_the_longest_size_is_still_read() -> None:
    reader = MetricReader()
    reader.feed(b"x" * (MAX_LINE - 7) + b" loss=2")
    assert told(reader.feed(b"\n")) == [("loss", None, 2.0)]


# --- hostile output --------------------------------------------------------------------------------------------------

BITS = [bit.encode("latin-1") for bit in entries("unit/metric_lines", "bits")]


@pytest.mark.slow
@given(st.lists(st.sampled_from(BITS) | st.binary(max_size=8), max_size=60), st.integers(1, 64))
@settings(deadline=None, max_examples=300)
def test_no_bytes_make_it_fail(bits: list[bytes], size: int) -> None:
    data = b"".join(bits)
    reader = MetricReader((r"loss[=: ]+(?P<loss>\S+)", r"(?P<step>\d+)"))
    for begin in range(0, len(data), size):
        for reading in reader.feed(data[begin : begin + size]):
            assert all(isinstance(value, float) for value in reading.values.values())
            assert reading.step is None or reading.step >= 0


def seconds_for(data: bytes) -> float:
    begin = time.process_time()
    MetricReader().feed(data)
    return time.process_time() - begin


@pytest.mark.slow
@pytest.mark.parametrize("bit", BITS)
def test_a_hostile_line_of_a_megabyte_takes_linear_time(bit: bytes) -> None:
    megabyte = (bit * (1_000_000 // len(bit)))[:1_000_000] + b"\n"
    assert seconds_for(megabyte) < 5  # 0.5 s in fact; what is quadratic takes hours


@pytest.mark.slow
@given(st.lists(st.sampled_from(BITS), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_no_mixture_of_hostile_bits_takes_more_than_linear_time(bits: list[bytes]) -> None:
    unit = b"".join(bits)
    assert seconds_for((unit * (100_000 // len(unit)))[:100_000] + b"\n") < 1


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_source_code_in_a_traceback_is_no_report(size: int, prefix: str) -> None:
    lines = entries("unit/metric_lines", "source_code_in_a_traceback_is_no_report")
    data = "".join(f"{prefix if 0 < place < 9 else ''}{line}\n" for place, line in enumerate(lines)).encode()
    reader = MetricReader()
    found = [line for begin in range(0, len(data), size) for line in reader.feed(data[begin : begin + size])]
    assert told(found) == [("loss", 3, 0.5), ("loss", 4, 0.25)]


def test_what_rankdeck_says_in_a_rank_is_no_step_of_the_training():
    progress = RankProgress()
    lost = "rankdeck: rank 2 lost a peer after step 0: Connection closed by peer [192.0.2.2]:29596"
    text = "\n".join(["step 50/300 loss 2", lost, "step 100/300 loss 1", "step 300/300 loss 1", ""])
    take_lines(2, progress, 1.0, MetricReader().feed(text.encode()))
    assert (progress.step, progress.steps) == (300, 300)
    assert read(lost) == []
    assert read(lost, r"after step (?P<step>\d+)") != []


def test_a_pattern_of_the_profile_hides_no_epoch_of_a_step_with_separators() -> None:
    lines = [f"step {step:,}/1,200 loss 0.5 gain=2.5\n" for _ in range(5) for step in range(1000, 1201)]
    progress, reader = RankProgress(), MetricReader((r"gain=(?P<gain>\S+)",))
    take_lines(0, progress, 1.0, reader.feed("".join(lines).encode()))
    assert (progress.step, progress.epoch_step) == (6000, 1200)


@pytest.mark.parametrize("more", ["", " f1,234"])
def test_no_extreme_of_a_value_with_separators_is_lost(more: str) -> None:
    """`more` makes a line be read anew each time."""
    lines = [f"step {step} loss {2000 + step % 7:,.1f}{more}" for step in range(500)]
    lines[234], lines[345] = f"step 234 loss 1,000.5{more}", f"step 345 loss 9,000.5{more}"
    found = [line.values["loss"] for line in MetricReader().feed("".join(f"{line}\n" for line in lines).encode())]
    assert (min(found), max(found)) == (1000.5, 9000.5)
