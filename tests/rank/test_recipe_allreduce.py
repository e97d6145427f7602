"""The recipe `allreduce`: its options, what its times come to, and a short run over each backend."""

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.commands import bench
from engine.core.errors import UsageError
from rankdeck.recipes import _timings, allreduce, read_parameters
from rankdeck.recipes._collectives import COLLECTIVES
from rankdeck.recipes._sizes import parse_sizes
from tests.recipe_ranks import RECIPES, Gang, run_recipe
from tests.support import entries, from_table

# --- sizes


@from_table
def test_sizes_are_doubled_multiplied_or_listed(words: str, sizes: list[int]):
    assert parse_sizes(words) == sizes


@given(low=st.integers(1, 1 << 40), high=st.integers(1, 1 << 40), factor=st.integers(2, 1000))
def test_a_range_of_sizes_rises_from_its_first_to_its_last(low: int, high: int, factor: int):
    low, high = sorted((low, high))
    sizes = parse_sizes(f"{low}:{high}:x{factor}")
    assert sizes[0] == low
    assert sizes[-1] == high
    assert sizes == sorted(set(sizes))
    assert all(later <= earlier * factor for earlier, later in itertools.pairwise(sizes))


@from_table
def test_words_that_are_no_sizes_are_refused_with_what_is_allowed(words: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        read_parameters(allreduce.Parameters, [f"--sizes={words}"])
    said = capsys.readouterr().err
    assert f"--sizes: {words!r} is not understood: bytes, such as 4:400M" in said
    with pytest.raises(UsageError, match=r"is not understood: bytes, such as 4:400M \(doubling\)"):
        bench.make_profiles("gloo", None, None, None, {"sizes": words})


@from_table
def test_what_makes_no_sense_is_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        allreduce.check(read_parameters(allreduce.Parameters, words))
    assert capsys.readouterr().err == f"allreduce: {why}\n"


@pytest.mark.parametrize("words", ["all", "barrier", "all_reduce,sendrecv", *COLLECTIVES])
def test_every_collective_can_be_chosen(words: str):
    assert read_parameters(allreduce.Parameters, ["--collectives", words]).collectives == words


def test_another_collective_or_type_is_refused(capsys: pytest.CaptureFixture[str]):
    for words in (["--collectives", "reduce"], ["--collectives", "all,barrier"], ["--dtype", "float8"]):
        with pytest.raises(SystemExit, match="2"):
            read_parameters(allreduce.Parameters, words)
    assert "'float8' is not one of float32, float64, float16, bfloat16, int32, int64" in capsys.readouterr().err


# --- what times come to


@from_table
def test_bandwidths_are_those_of_nccl_tests(name, world, size, seconds, algbw, busbw):
    found = _timings.summarize(name, size, world, [seconds] * 5)
    assert found.algbw == pytest.approx(algbw)
    assert found.busbw == pytest.approx(busbw)
    assert found.median == found.p95 == pytest.approx(seconds * 1e6)


def test_median_and_p95_are_of_the_repetitions():
    times = [number / 1e6 for number in range(100, 0, -1)]
    found = _timings.summarize("all_reduce", 4, 2, times)
    assert found.repetitions == 100
    assert found.median == pytest.approx(50.5)
    assert found.p95 == pytest.approx(95)
    assert _timings.percentile([3.0], 0.95) == 3.0
    assert _timings.percentile([1.0, 2.0, 3.0, 4.0, 5.0], 0.95) == 5.0


# --- a run


MOVING = [name for name in COLLECTIVES if name != "barrier"]


@pytest.mark.slow
def test_under_torchrun_every_collective_is_measured_and_told_in_eighty_columns(tmp_path: Path):
    words = ("--collectives", "all", "--sizes", "4,64K", "--seconds", "0.01")
    done = run_recipe(tmp_path, "allreduce", *words, launcher="torchrun")
    assert done.statuses == [0, 0], done.outputs
    lines = done.outputs[0].splitlines()
    assert lines[0] == "2 ranks, gloo on cpu, float32; times are of the slowest rank"
    assert sorted(line for line in lines if line in COLLECTIVES) == sorted(COLLECTIVES)
    assert lines[-1] == "done: every result was right"
    assert max(map(len, lines)) <= 80
    row = re.compile(r" +(4 B|8 B|64 KiB) +\d+ +[\d.]+ [mu]?s +[\d.]+ [mu]?s +[\d.]+ +[\d.]+")
    assert sum(bool(row.fullmatch(line)) for line in lines) == 2 * len(MOVING)


@pytest.mark.slow
def test_one_rank_without_any_launcher_measures_what_it_can(tmp_path: Path):
    words = ("--collectives", "all_reduce,sendrecv", "--sizes", "4,64K", "--seconds", "0.01")
    done = run_recipe(tmp_path, "allreduce", *words, launcher="python")
    assert done.statuses == [0], done.outputs
    assert "1 rank, gloo on cpu" in done.outputs[0]
    assert "sendrecv: not measured: 2 ranks are needed" in done.outputs[0]


@pytest.mark.slow
def test_a_wrong_result_is_an_error_with_collective_size_and_rank(tmp_path: Path):
    script = tmp_path / "wrong.py"
    script.write_text(entries("rank/recipe_allreduce", "wrong"))
    words = ("--sizes", "1K,4K,16K", "--seconds", "0.01")
    gang = Gang(tmp_path / "run", [str(script), str(RECIPES / "allreduce.py"), *words], 2, "torchrun")
    assert gang.wait() == [1, 1]
    said = "allreduce: all_reduce of 4 KiB (4096 bytes) in float32 over gloo gave rank 1 a wrong result"
    assert said in gang.log(0) + gang.log(1)
    assert " 1 KiB" in gang.log(0)
    assert "16 KiB" not in gang.log(0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32", "int64"])
def test_every_type_is_summed_right(tmp_path: Path, dtype: str):
    words = ("--sizes", "2,1000", "--dtype", dtype, "--seconds", "0.01")
    done = run_recipe(tmp_path, "allreduce", *words, launcher="torchrun")
    assert done.statuses == [0, 0], done.outputs
    assert "done: every result was right" in done.outputs[0]
