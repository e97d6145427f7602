"""Bars of ranks below the output on a terminal."""

import io
import re
from pathlib import Path

import pytest

from engine.commands.bars import LiveBars, bar_lines
from engine.commands.tail import Follower, final_states
from tests.unit.test_log_order import told, write


class Screen(io.StringIO):
    """A terminal that knows only what bars need."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What is on the screen."""
        lines = [""]
        for text, up in re.findall(r"([^\x1b]+)|\x1b\[(\d+)F\x1b\[J", self.getvalue()):
            if up:
                del lines[len(lines) - 1 - int(up) :]
                lines.append("")
            first, *rest = text.split("\n")
            lines[-1] += first
            lines += rest
        return lines[:-1]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COLUMNS", "40"), ("LINES", "8"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)


def test_bars_stay_below_what_is_printed() -> None:
    screen = Screen()
    bars = LiveBars(screen)
    screen.write("first\n")
    bars.show([("[r0 a] ", b" 10%|#   | 1/10"), ("[r1 a] ", b" 20%|##  | 2/10")])
    assert screen.lines() == ["first", "[r0 a]  10%|#   | 1/10", "[r1 a]  20%|##  | 2/10"]
    bars.show([("[r0 a] ", b" 30%|### | 3/10")])
    assert screen.lines() == ["first", "[r0 a]  30%|### | 3/10"]
    bars.hide()
    screen.write("second\n")
    bars.show([("[r0 a] ", b" 40%|####| 4/10")])
    assert screen.lines() == ["first", "second", "[r0 a]  40%|####| 4/10"]
    bars.show([])
    assert screen.lines() == ["first", "second"]


def test_nothing_is_drawn_on_what_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    LiveBars(file).show([("", b"10%")])
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen()
    LiveBars(screen).show([("", b"10%")])
    assert file.getvalue() == screen.getvalue() == ""


def test_bars_never_take_more_than_their_row_nor_more_than_half_the_screen() -> None:
    lines = bar_lines([(f"[r{rank}] ", "█".encode() * 99) for rank in range(9)], 40, 4)
    assert len(lines) == 4
    assert lines[3] == "… and 6 more bars"
    assert {len(line) for line in lines[:3]} == {39}
    (wide,) = bar_lines([("", "漢".encode() * 30 + b"\x1b[31m\x1b[2J")], 40, 4)
    assert wide == "漢" * 19


def test_the_newest_state_of_an_unfinished_line_is_its_bar(tmp_path: Path) -> None:
    paths = write(tmp_path, r0_out=b"done\n", r0_err=b"\r 10%\r 20%\r 30%", r1_err=b"loading")
    follower = Follower(paths, 0, [0, 1], final=True)
    assert told(list(follower.poll())) == [(0, "out", b"done\n")]
    assert follower.bars() == {(0, "err"): b" 30%"}
    with (paths.attempt(0) / "rank_0.err").open("ab") as file:
        file.write(b"\r 40%\r")
    assert list(follower.poll()) == []
    assert follower.bars() == {(0, "err"): b" 40%"}
    with (paths.attempt(0) / "rank_0.err").open("ab") as file:
        file.write(b"\r100%\nnext\n\r 1%\r 2%")
    assert told(list(follower.poll())) == [(0, "err", b"100%\nnext\n")]
    assert sorted(told(list(follower.drain()))) == [(0, "err", b" 2%"), (1, "err", b"loading")]
    follower.close()


def test_in_a_file_only_the_last_state_of_a_bar_appears() -> None:
    assert final_states(b"a\r\n\rb\rc\n\r\n") == b"a\nc\n\n"
    assert final_states(b"plain\n") == b"plain\n"
