"""What reaches a terminal of what ranks wrote, and how numbers look."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import Color

from engine.core.numbers import age, duration, memory, number, precise
from engine.core.settings import Units
from tests.support import from_table, rows
from tests.tui.hostile import CORPUS
from tui.text.cells import MAX_CELLS, cell_fit, clean, plain_line, segments_line


def harmless(text: str) -> bool:
    """Whether every character is one that a terminal only prints."""
    return not any(
        ord(character) < 32
        or 0x7F <= ord(character) <= 0x9F
        or 0x200B <= ord(character) <= 0x200F
        or 0x2028 <= ord(character) <= 0x202E
        or 0x2060 <= ord(character) <= 0x206F
        or 0xD800 <= ord(character) <= 0xDFFF
        for character in text
    )


@pytest.mark.parametrize("name", CORPUS)
def test_trap_2_only_printable_text_is_left_of_hostile_output(name):
    line, spans = segments_line(CORPUS[name])
    assert harmless(line)
    assert cell_len(line) <= MAX_CELLS
    assert "text" in line or "txet" in line or name == "separators" or "after" in line
    assert all(0 <= begin <= end <= len(line) for begin, end, _ in spans)
    assert line == plain_line(CORPUS[name])


@given(st.binary(max_size=400))
def test_any_bytes_are_made_harmless(data):
    line, spans = segments_line(data)
    assert harmless(line)
    assert all(0 <= begin <= end <= len(line) for begin, end, _ in spans)


@given(st.text(alphabet="\x1b[]PX^_;0123456789mJHc\\\x07\x9b\x9c\x9d\b\r\tab日", max_size=60))
def test_any_mixture_of_control_sequences_is_made_harmless(text):
    assert harmless(plain_line(text))
    assert all(harmless(line) for line in clean(text + "\n" + text).split("\n"))


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=200))
def test_plain_text_stays_as_it_is(text):
    assert plain_line(text) == text or text.isspace()


@from_table
def test_control_characters_of_a_line_do_what_a_terminal_would(line, text):
    assert segments_line(line.encode()) == (text, [])
    assert plain_line(line) == text


def test_lone_surrogates_are_replaced():
    assert plain_line("a\ud800b") == "a\ufffdb"


def test_colours_are_kept_as_styles():
    line, spans = segments_line(b"a\x1b[1;31mred\x1b[22mthin\x1b[0mplain\x1b[38;5;200mx\x1b[38;2;1;2;3my\x1b[39mz")
    assert line == "aredthinplainxyz"
    assert [(line[begin:end], style.color, style.bold) for begin, end, style in spans] == [
        ("red", Color.from_ansi(1), True),
        ("thin", Color.from_ansi(1), None),
        ("x", Color.from_ansi(200), None),
        ("y", Color.from_rgb(1, 2, 3), None),
    ]


@from_table
def test_broken_colours_are_no_error(parameters):
    assert segments_line(f"\x1b[{parameters}mtext")[0] == "text"


def test_colours_can_be_left_out():
    assert segments_line(b"\x1b[31mred", colour=False) == ("red", [])


def test_a_line_is_cut_at_4096_cells_and_says_so():
    line = plain_line("日" * 5000)
    assert cell_len(line) == MAX_CELLS - 1
    assert line.endswith("…")


def test_lines_that_are_made_to_be_slow_are_not():
    for data in (b"\x1b]" * 500_000, "\x9d".encode() * 500_000, b"\t" * 10**6, b"\x1b[" + b"0" * 10**6, b"\r" * 10**6):
        begin = time.process_time()
        segments_line(data)
        assert time.process_time() - begin < 5


def test_several_lines_are_cleaned_line_by_line():
    assert clean(b"Traceback \x1b[31m(most\n  File\rover\n") == "Traceback (most\nover\n"


def test_text_is_cut_by_cells_and_padded():
    assert cell_fit("日本語", 4) == "日 …"
    assert cell_fit("ab", 4) == "ab  "
    assert cell_fit("ab", 4, right=True) == "  ab"
    assert cell_fit("abcde", 4, ascii=True) == "abc~"
    assert cell_fit("abc", 0) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *rows("tui/text", "a_number_has_three_or_four_digits_in_constant_width"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ],
)
def test_a_number_has_three_or_four_digits_in_constant_width(value, text):
    assert number(value, 7) == text.rjust(7)


@given(st.floats() | st.none(), st.integers(min_value=0, max_value=12))
def test_a_number_always_has_its_width(value, width):
    assert len(number(value, width)) == width


@from_table
def test_a_precise_value_has_four_digits(value, text):
    assert precise(value) == text


@given(st.floats(min_value=1e-99, max_value=1e99))
def test_a_precise_value_fits_into_nine_cells(value):
    assert len(precise(value)) <= 9


def test_a_number_that_does_not_fit_is_no_other_number():
    assert number(-3.2e-07, 3) == "###"


def test_durations_and_ages_in_words():
    assert [duration(seconds) for seconds in (0.04, 9.96, 42.9, 187, 7390, 356_400, -5, None, math.inf)] == [
        "0.0 s", "9 s", "42 s", "3:07", "2:03:10", "4 d 3 h", "0.0 s", "–", "–",  # noqa: RUF001
    ]  # fmt: skip
    assert [age(seconds) for seconds in (0.21, 1.2, 59.9, 61, 7300, 9e5, -5, None, math.nan)] == [
        "0.2 s", "1 s", "59 s", "1 min", "2 h", "10 d", "0.0 s", "–", "–",  # noqa: RUF001
    ]  # fmt: skip


def test_sizes_in_words():
    counts = (0, 700 << 20, 999 << 20, 1000 << 20, 5 << 28, 61 << 30, 1 << 53, None)
    assert [memory(count) for count in counts] == ["0.0 M", "700 M", "999 M", "1.0 G", "1.2 G", "61 G", "8.0 P", "–"]  # noqa: RUF001
    assert [memory(count, Units(memory="GB")) for count in (61 << 30, 999_499_999, 999_500_000)] == [
        "65 G",
        "999 M",
        "1.0 G",
    ]
