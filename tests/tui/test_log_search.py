"""Searching logs of any size: expressions, blocks, and the order of matches in several files."""

import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import PATIENCE
from tui.data.log import search as log_search
from tui.data.log.file import LogFile
from tui.data.log.filter import LogFilter
from tui.data.log.merged import MergedLog, Place
from tui.data.log.pattern import Pattern, PatternError
from tui.data.log.search import Found, LogSearch, Step

STEPS: list[Step] = ["previous", "next"]


class Asked:
    """A search, and a way to wait for it."""

    def __init__(self, log: MergedLog, text: str, begin: Place | str = "end") -> None:
        self._told = threading.Event()
        self.search = LogSearch(log, Pattern(text), begin, self._told.set)  # type: ignore[arg-type]
        self.answered = 0

    def until(self, condition: Callable[[Found], bool]) -> Found:
        while not condition(self.search.found):
            assert self._told.wait(PATIENCE), self.search.found
            self._told.clear()
        return self.search.found

    def step(self, step: Step | None = None) -> Found:
        """The answer to the next question."""
        if step is not None:
            self.search.ask(step)
        self.answered += 1
        return self.until(lambda found: found.asked >= self.answered)


@contextmanager
def searched(log: MergedLog, text: str, begin: Place | str = "end") -> Iterator[Asked]:
    asked = Asked(log, text, begin)
    with closing(asked.search):
        yield asked


def places_of(lines: list[bytes], text: str) -> list[int]:
    offset, places = 0, []
    for line in lines:
        if Pattern(text).has(line):
            places.append(offset)
        offset += len(line) + 1
    return places


@pytest.mark.parametrize(
    "text", ["needle", "Needle", "^needle", "needle$", r"\S+ \S+", r"a\s+needle", "[^x]*needle", "", "é|a", "nee.le$"]
)
@pytest.mark.parametrize("more", ["", "é b c", "\x1b[31ma\x1b[0m needle"])
def test_the_lines_that_match_are_found_in_a_block(text, more):
    lines = ["a", "Needle", "needle", more, "a needle", "a", "needless"]
    offsets = [len("\n".join([*lines[:index], ""]).encode()) for index in range(len(lines))]
    shown = [line.replace("\x1b[31m", "").replace("\x1b[0m", "") for line in lines]
    flags = re.IGNORECASE if text != "Needle" else 0
    expected = [offset for offset, line in zip(offsets, shown, strict=True) if re.search(text, line, flags)]
    assert list(Pattern(text).lines("\n".join(lines).encode())) == expected


PARTS = ["a", "(?:a|b)*", "ab", "B", " ", ".", ".*", "a?", "x*", "^", "$", r"\b", r"\d", r"\d+", r"\w+", r"\S", r"\s", r"\W", "[^a]", "[a-c]", "(a)", "(?:b|$)", "|", r"\.", "(?!a)", r"\n", r"\B"]  # fmt: skip


@given(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join),
    st.lists(st.text("aAbB1. ", max_size=6), min_size=1, max_size=40),
)
def test_a_block_has_the_matches_of_its_lines(text: str, lines: list[str]):
    try:
        pattern = Pattern(text)
    except PatternError:
        return
    begins = [len("\n".join([*lines[:index], ""])) for index in range(len(lines))]
    expected = [begin for begin, line in zip(begins, lines, strict=True) if pattern.has(line.encode())]
    assert list(pattern.lines("\n".join(lines).encode())) == expected


@pytest.mark.parametrize("text", ["a[", "(", "x{2,1}", "a" * 1500])
def test_what_can_t_be_sought_says_why(text):
    with pytest.raises(PatternError, match=r"\w"):
        Pattern(text)


SLOW = "(a|aa)*[bc]"  # takes exponential time in lines of `a`


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.data.log.pattern.SECONDS", 0.02)
    monkeypatch.setattr("tui.data.log.pattern.LINE_SECONDS", 0.02)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("text", [SLOW, "(a+)+b"])
def test_what_takes_exponential_time_ends_and_finds_nothing_from_then_on(text):
    lines = b"xab\n" + b"a" * 200
    pattern = Pattern(text)
    assert list(pattern.lines(lines)) == []
    assert pattern.is_slow
    assert list(pattern.lines(b"xab")) == []
    line, drawn = Pattern(text), Pattern(text)
    assert not line.has(b"a" * 200)
    assert drawn.places("a" * 200) == []
    assert line.is_slow
    assert drawn.is_slow


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("text", "lines"), [(r"\D+1", b"\n" * 1_000_000), (r"(?s:.+)1", b"a\n" * 500_000), ("error.*x", b"error" * 200_000)]
)
def test_a_repeat_in_very_many_lines_or_a_very_long_one_ends(text: str, lines: bytes):
    """With `re` each of these takes hours."""
    assert list(Pattern(text).lines(lines)) == []


@pytest.mark.usefixtures("impatient")
def test_a_search_that_takes_exponential_time_ends(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"a" * 200 + b"\n" for _ in range(100)))
    with searched(MergedLog([LogFile(path)]), SLOW) as asked:
        found = asked.until(lambda found: found.whole)
        assert (found.place, found.matches) == (None, 0)
        assert asked.search.pattern.is_slow


@pytest.mark.usefixtures("impatient")
def test_a_filter_that_takes_exponential_time_is_left_out(tmp_path):
    for text in (SLOW, f"!{SLOW}"):
        shown = LogFilter(text)
        keeps = shown.reader()
        assert not shown.is_slow
        assert [keeps(0, line) for line in (b"a" * 200, b"x", b"xb")] == [True, True, True]
        assert shown.is_slow


@pytest.mark.parametrize("text", ["a{e}.*b*c*", r"a\{e}.*b*c*", "{.*b*.*", "(x{i<=3}|y)*z.*"])
def test_what_is_searched_with_a_bound_means_the_same(text):
    line = "xa{e}bc {i z x{i<=3}z"
    assert Pattern(text).places(line) == [found.span() for found in re.finditer(text, line) if found.group()]


WORDS = ["loss", "Loss", "nan", "step 7", "\x1b[31mloss\x1b[0m", "é", "x" * 90, "", "ERROR: loss nan"]


@pytest.mark.parametrize("text", ["loss", "Loss", "loss|nan", "loss nan", r"\d", "lo*ss?", "^$", "x{3}", "s n?"])
@pytest.mark.parametrize("block", [40, 256, 1 << 17])
def test_a_search_finds_what_looking_at_every_line_finds(tmp_path, monkeypatch, text, block):
    monkeypatch.setattr(log_search, "BLOCK", block)
    chance = random.Random(f"{text} {block}")
    lines = [" ".join(chance.choices(WORDS, k=chance.randint(0, 3))).encode() for _ in range(200)]
    path = tmp_path / "log"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    expected = places_of(lines, text)
    begin = Place(0, chance.randrange(path.stat().st_size))
    with searched(MergedLog([LogFile(path)]), text, begin) as asked:
        first = asked.step().place
        assert (first is None) == (not expected)
        assert asked.until(lambda found: found.whole).matches == len(expected)
        if first is None:
            return
        place = expected.index(first.offset)
        for step in chance.choices(STEPS, k=30):
            found = asked.step(step)
            turned = place + (1 if step == "next" else -1)
            place = turned % len(expected)
            assert (found.place, found.wrapped) == (Place(0, expected[place]), turned != place)
            assert asked.until(lambda found: found.number is not None).number == place + 1


def test_matches_of_several_files_stand_in_the_order_of_the_log(tmp_path):
    class ByTime:
        """File n has grown by a line at 10 + n, 20 + n, ..."""

        def refresh(self) -> bool:
            return True

        def position(self, rank: int, stream: str, end: int) -> float:
            return -(-end // 9) * 10 + rank

        def size(self, rank: int, stream: str, position: float) -> int:
            return max(0, int((position - rank - 1) // 10) * 9)

    for rank in range(3):
        (tmp_path / f"{rank}").write_bytes(b"".join(b"needle %d\n" % step for step in range(5)))
    log = MergedLog([LogFile(tmp_path / f"{rank}", rank=rank) for rank in range(3)], ByTime())
    log.apply(log.fetch("end"))
    in_order = [(line.source, line.data) for line in log.lines]
    assert in_order == [(rank, b"needle %d" % step) for step in range(5) for rank in range(3)]
    with searched(log.copy(), "needle") as asked:
        places = [asked.step(step).place for step in (None, *STEPS[:1] * 14, *STEPS[1:])]
    expected = [Place(rank, 9 * step) for step in range(5) for rank in range(3)]
    assert places == [*reversed(expected), expected[1]]


def test_the_lines_around_a_place_are_read(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %06d\n" % number for number in range(100_000)))
    log = MergedLog([LogFile(path)])
    log.apply(log.fetch("end"))
    assert log.index(Place(0, 0)) is None
    batch = log.fetch(Place(0, 12 * 50_000))
    log.apply(batch)
    assert log.lines[batch.place].data == b"line 050000"
    assert log.index(Place(0, 12 * 50_000)) == batch.place
    assert log.lines[batch.place - 1].data == b"line 049999"
    before = log.lines[0].data
    log.apply(log.fetch("older"))
    assert int(before.split()[1]) - 1 in {int(line.data.split()[1]) for line in log.lines}
    numbers = [int(line.data.split()[1]) for line in log.lines]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
