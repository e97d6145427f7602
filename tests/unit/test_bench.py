"""Measured collectives: sizes, bandwidths, what is taken for a result, and how runs stand beside each other."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.commands import bench
from engine.core.errors import UsageError
from engine.core.metrics.bench import (
    Column,
    Result,
    comparison,
    differs,
    moved_words,
    parse_results,
    rate_words,
    time_words,
)
from engine.planning.recipes import recipes
from rankdeck.recipes._sizes import size_text, time_text
from tests.support import entries, from_table, parse_profile

MIB = 1 << 20

# --- words


@from_table
def test_a_size_is_told_in_its_unit_in_the_run_and_in_front_of_it(size: int, words: str):
    assert moved_words(size) == size_text(size) == words


@from_table
def test_a_time_is_told_in_three_digits_in_the_run_and_in_front_of_it(microseconds: float, words: str):
    assert time_words(microseconds) == time_text(microseconds) == words


@given(size=st.integers(0, 1 << 49), time=st.floats(0, 1e9), rate=st.floats(0, 1e12))
def test_words_keep_to_their_cells(size: int, time: float, rate: float):
    assert len(moved_words(size)) <= 8
    assert len(time_words(time)) <= 8
    assert len(rate_words(rate)) <= 7


# --- results in a file


def line(**changes: object) -> bytes:
    values = {"t": 1.0, "step": 1, "collective": "all_reduce", "dtype": "float32", "bytes": 1024, "repetitions": 9,
              "median_us": 10.0, "p95_us": 20.0, "algbw": 0.1, "busbw": 0.1}  # fmt: skip
    return json.dumps({**values, **changes}).encode() + b"\n"


def test_results_are_read_among_other_metrics_and_the_later_of_two_counts():
    data = b'{"t":1,"step":1,"loss":2.0}\n' + line() + line(bytes=4) + line(median_us=11.0)
    assert [(result.bytes, result.median_us) for result in parse_results(data)] == [(1024, 11.0), (4, 10.0)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        line().rstrip(b"\n"),
        line(median_us=math.nan),
        line(median_us=-1.0),
        line(median_us=0),
        line(busbw=math.inf),
        line(bytes=-4),
        line(bytes=1 << 60),
        line(bytes="many"),
        line(collective="\x1b]0;title\x07"),
        line(collective="x" * 500),
        line(note="x" * 5000),
        b'{"collective": 1}\n',
        b'"collective"\n',
        b'\xff\xfe"collective"\x00\n',
        b"[" * 2000 + b'"collective"\n',
    ],
)
def test_what_is_no_result_is_passed_over(data: bytes):
    assert parse_results(data) == []
    assert len(parse_results(line(bytes=8) + data + line(bytes=4))) >= 1


def test_a_rank_that_reports_without_end_fills_no_memory():
    assert len(parse_results(b"".join(line(bytes=size) for size in range(5000)))) == 2000


# --- side by side


def result(
    size: int, median: float, p95: float, *, collective: str = "all_reduce", busbw: float | None = 1.0
) -> Result:
    return Result(
        collective=collective, dtype="float32", bytes=size, repetitions=9, median_us=median, p95_us=p95, algbw=busbw, busbw=busbw
    )  # fmt: skip


GLOO = Column(
    "gloo",
    [result(4, 600, 900), result(MIB, 7000, 7700, busbw=0.15), result(0, 50, 60, collective="barrier", busbw=None)],
)
MPI = Column("mpi", [result(4, 8, 12), result(MIB, 6900, 8000, busbw=0.152)])


def test_backends_stand_beside_each_other_with_the_ratio_and_the_best_marked():
    assert comparison([GLOO, MPI], 80) == entries(
        "unit/bench", "backends_stand_beside_each_other_with_the_ratio_and_the_best_marked"
    )


def test_one_backend_alone_is_compared_with_nothing():
    assert comparison([MPI], 80) == entries("unit/bench", "one_backend_alone_is_compared_with_nothing")


def test_nothing_measured_is_no_table():
    assert comparison([], 80) == comparison([Column("gloo", [])], 80) == []


@pytest.mark.parametrize("width", [40, 80, 100, 120, 1000])
def test_a_table_keeps_to_the_width_and_shows_every_backend(width: int):
    columns = [GLOO, MPI, Column("another", MPI.results), Column("n" * 90, GLOO.results)]
    lines = comparison(columns, width)
    assert max(map(len, lines)) <= max(width, 8 + 28 + 38)
    for title in ("gloo", "mpi", "another", "nnn..."):
        assert any(title in line for line in lines)


def test_a_size_that_the_first_has_not_is_shown_without_a_ratio():
    lines = comparison([Column("a", [result(4, 10, 11)]), Column("b", [result(8, 10, 11)])], 80)
    assert [text.split() for text in lines[3:5]] == [
        ["4", "B", "10.0", "us", "11.0", "us", "1.000"],
        ["8", "B", "10.0", "us", "11.0", "us", "1.000", "-"],
    ]


@from_table
def test_medians_are_told_apart_where_the_slower_is_above_the_faster_ones_p95(one, other, apart):
    assert differs(result(4, *one), result(4, *other)) is apart


# --- what is launched


def test_there_is_a_profile_for_each_backend_that_exists():
    from engine.backends import BACKENDS

    profiles = bench.make_profiles(None, None, None, None, {"sizes": "4:8", "dtype": None})
    assert [profile.backend.name for profile in profiles] == list(BACKENDS)
    assert {profile.recipe.args for profile in profiles} == {("--sizes", "4:8")}
    assert {(profile.layout.nodes, profile.layout.ranks_per_node) for profile in profiles} == {("localhost", 2)}
    assert {profile.launch.on_failure for profile in profiles} == {"stop"}


def test_a_profile_lends_its_layout_environment_and_launch_and_its_backend_only_to_itself():
    base = parse_profile(
        'schema = 1\nname = "mine"\n[backend]\nname = "gloo"\nfallback = ["mpi"]\n[backend.env]\nA = "1"\n[layout]\nnodes = "n[1-2]:4"\n'
        '[recipe]\nname = "gpt"\n[launch]\nsetup = "module load x"\non_failure = "hold"\n[env]\nB = "2"\n',
        file="mine.toml",
    )
    gloo, mpi = bench.make_profiles("gloo,mpi", base, None, None, {})
    assert (gloo.name, mpi.name) == ("bench-gloo", "bench-mpi")
    assert (gloo.backend.env, mpi.backend.env) == ({"A": "1"}, {})
    for profile in (gloo, mpi):
        assert profile.backend.fallback == ()
        assert (profile.layout, profile.env, profile.launch.setup) == (base.layout, base.env, "module load x")
        assert profile.recipe.name == "allreduce"


@from_table
def test_a_wrong_word_is_one_clear_error(words, why):
    with pytest.raises(UsageError, match=why):
        bench.make_profiles(words.get("backends"), None, words.get("nodes"), words.get("ranks"), {})


def test_the_options_of_the_command_are_arguments_of_the_recipe():
    assert {"collectives", "sizes", "dtype", "seconds"} <= {one.name for one in recipes()["allreduce"].arguments}


def test_names_that_are_documented_are_those_that_are_reported():
    text = (Path(__file__).resolve().parents[2] / "docs" / "bench.md").read_text()
    assert all(f"`{name}`" in text for name in Result.__struct_fields__)
