"""The widgets and the driver in a real terminal, which is exchanged, stopped and lied to."""

import codecs
import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.drivers import linux_driver

from tests.support import PATIENCE, wait_until
from tests.tui.hostile import CORPUS
from tests.tui.terminal import Terminal
from tui.driver import InputDecoder

OURS = re.compile(rb"\x1b\[[\d;]*m|\x1b\[\d+;\d+H|\x1b\[\?2026[hl]|\r(?:\n|\Z)")
"""What Textual writes while it runs: styles, cursor addresses, frames, line ends of a whole screen."""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "log").write_bytes(b"\n".join(CORPUS.values()) + b"\nthe end\n")
    terminal = Terminal("tests.tui.widget_app", str(tmp_path))
    terminal.wait_seen("ready")
    yield terminal
    terminal.close()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_traps_2_and_7_nothing_but_styles_and_addresses_reaches_the_terminal(terminal):
    # Until the first key is answered, Textual asks the terminal what it can do.
    terminal.send(b"a")
    terminal.wait_seen("keys 1: a")
    terminal.output = b""
    terminal.send(b"x")
    terminal.wait_seen("the end", "error in [/usr/lib] [/] text", "[red]text [bold")
    terminal.send(b"z")
    terminal.wait_seen("text text text text text text text text text")
    terminal.send(b"b")
    terminal.wait_seen("keys 2: b")
    left = OURS.sub(b"", terminal.output).decode()
    assert [character for character in left if ord(character) < 32 or 0x7F <= ord(character) <= 0x9F] == []


def test_trap_4_mouse_reports_of_the_old_form_past_column_95_do_no_harm(terminal):
    terminal.output = b""
    for column in (10, 95, 96, 120, 159, 200):
        terminal.send(b"\x1b[M" + bytes([32 + 35, 32 + column, 32 + 10]))
    terminal.send(b"a")
    terminal.wait_seen("keys 1: a")
    terminal.wait(lambda: b"\x1b[?1006h" in terminal.output, "the request for the SGR form")


def test_a_report_that_arrives_in_parts_is_no_key(terminal):
    for part in (b"\x1b[M", b"C", b"\xf0", b"!a"):
        terminal.send(part)
    terminal.wait_seen("keys 1: a")


def test_a_key_counts_once_after_stop_and_continue(terminal):
    pid = terminal.child.pid
    terminal.child.kill(signal.SIGSTOP)
    terminal.wait(lambda: state_of(pid) == "T", "the stop")
    terminal.output = b""
    terminal.child.kill(signal.SIGCONT)
    terminal.wait(lambda: b"\x1b[?1006h" in terminal.output, "the request for the SGR form")
    for key in b"abc":
        terminal.send(bytes([key]))
    terminal.wait_seen("keys 3: c")
    terminal.send(b"\x11")
    terminal.wait(lambda: not terminal.child.isalive(), "the end of the app")
    flags = termios.tcgetattr(terminal.child.child_fd)[3]
    assert flags & termios.ECHO, "the terminal has its settings back"
    assert flags & termios.ICANON


def test_the_mouse_form_is_asked_for_again_after_a_suspension(terminal):
    pid = terminal.child.pid
    terminal.child.kill(signal.SIGTSTP)
    terminal.wait(lambda: state_of(pid) == "T", "the stop")
    terminal.output = b""
    terminal.child.kill(signal.SIGCONT)
    terminal.wait(lambda: b"\x1b[?1006h" in terminal.output, "the request for the SGR form")
    terminal.send(b"a")
    terminal.wait_seen(": a")


@pytest.mark.slow
def test_a_suspension_may_come_while_the_screen_is_painted(terminal):
    pid = terminal.child.pid
    for _ in range(30):
        terminal.send(b"a")
        terminal.child.kill(signal.SIGTSTP)
        terminal.wait(lambda: state_of(pid) == "T", "the stop")
        terminal.output = b""
        terminal.child.kill(signal.SIGCONT)
        terminal.wait(lambda: b"\x1b[?1006h" in terminal.output, "the request for the SGR form")


def test_sigterm_restores_the_terminal_and_its_status_is_that_of_the_signal(terminal):
    terminal.child.kill(signal.SIGTERM)
    for mode in (b"\x1b[?1006l", b"\x1b[?1049l"):
        terminal.wait(lambda mode=mode: mode in terminal.output, f"the end of {mode!r}")
    wait_until(lambda: not terminal.child.isalive(), what="the end of the app")
    assert terminal.child.exitstatus == 128 + signal.SIGTERM


def test_the_whole_screen_is_painted_again_after_a_suspension(terminal):
    pid = terminal.child.pid
    terminal.child.kill(signal.SIGTSTP)
    terminal.wait(lambda: state_of(pid) == "T", "the stop")
    terminal.read()
    terminal.screen.reset()
    terminal.child.kill(signal.SIGCONT)
    terminal.wait_seen("ready")


def test_an_app_ends_where_its_terminal_goes_without_a_signal(tmp_path):
    """As under `make run` in a tmux that is killed: the app does not lead the session, and no SIGHUP reaches it."""
    (tmp_path / "log").touch()
    ours, its = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.tui.widget_app", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env=environment,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    ) as app:
        os.close(its)
        said = b""
        while b"ready" not in said:
            said += os.read(ours, 65536)
        os.close(ours)
        assert app.wait(PATIENCE) == 128 + signal.SIGHUP


def test_textual_still_looks_up_its_decoder_by_the_name_that_is_exchanged():
    assert "getincrementaldecoder" in vars(linux_driver)
    assert "getincrementaldecoder" in linux_driver.LinuxDriver.run_input_thread.__code__.co_names


def test_input_that_is_not_utf8_is_replaced_and_no_error():
    assert InputDecoder().decode(b"a\xffb") == "a\ufffdb"


def test_a_character_that_arrives_in_parts_is_whole():
    decoder = InputDecoder()
    assert decoder.decode("é".encode()[:1]) + decoder.decode("é".encode()[1:]) == "é"


@given(st.lists(st.binary(max_size=6)))
def test_any_input_in_any_parts_is_text_like_the_whole(parts):
    whole = InputDecoder().decode(b"".join(parts), True)
    decoder = InputDecoder()
    assert "".join([*(decoder.decode(part) for part in parts), decoder.decode(b"", True)]) == whole


@given(st.text(), st.integers(min_value=32, max_value=255), st.integers(min_value=32, max_value=255))
def test_reports_vanish_from_between_text(text, column, row):
    data = text.encode() + b"\x1b[M#" + bytes([column, row]) + b"end"
    expected = codecs.decode(text.encode(), "utf-8") + "end"
    if "\x1b" not in text:
        assert InputDecoder().decode(data, True) == expected
