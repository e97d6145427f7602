"""A series of numbers in one line of text."""

from hypothesis import given
from hypothesis import strategies as st

from tui.text.sparkline import sparkline


def test_what_was_not_finite_is_marked():
    assert sparkline([1, None, 2, None, None, 3], 6) == "▁×▅××█"  # noqa: RUF001
    assert sparkline([None, None], 4) == "  ××"  # noqa: RUF001


def test_newest_value_is_on_the_right_and_nothing_is_stretched():
    assert sparkline([1, 2], 5) == "   ▁█"
    assert sparkline(list(range(100)), 3) == "▁▅█"
    assert sparkline([], 3) == "   "


def test_a_constant_series_stands_in_the_middle():
    assert sparkline([5, 5, 5], 4) == " ▄▄▄"
    assert sparkline([0], 1) == "▄"


def test_ascii_has_its_own_signs():
    line = sparkline([1, 2, 3, 4, 5, 6, 7, 8, None], 10, ascii=True)
    assert line == " _.-:=+*#x"
    assert line.isascii()


def test_the_largest_floats_are_no_error():
    assert sparkline([-1.7e308, 1.7e308], 2) == "▁█"


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.none()),
    st.integers(min_value=-1, max_value=80),
    st.booleans(),
)
def test_any_input_gives_exactly_its_width(values, width, ascii_only):
    line = sparkline(values, width, ascii=ascii_only)
    assert len(line) == max(0, width)
    assert line.isascii() or not ascii_only
