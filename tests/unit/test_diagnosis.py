"""How a failed rank is explained, from what Python, torch and the kernel really say."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.failures.diagnosis import explain, is_secondary, plain
from engine.core.failures.text.tracebacks import MAX_BYTES, MAX_LINES, last_chain, shortened
from tests.support import entries, from_table, rows

TORCH = Path("torch") / "distributed" / "distributed_c10d.py"


def run(folder: Path, source: str, *options: str, **env: str) -> tuple[int, bytes]:
    """Runs a script for real; its exit status and stderr."""
    script = folder / "train.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, "-S", *options, str(script)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env
    )
    return done.returncode, done.stderr


def last_traceback(stderr_tail: bytes) -> str:
    """What `explain` shows of the last traceback in a rank's stderr."""
    return shortened(last_chain(plain(stderr_tail), fatal=False))


def traceback_of(message: str, *, rank: int | None = 0) -> bytes:
    """What torch's excepthook prints for an exception in a collective."""
    lines = [
        "Traceback (most recent call last):",
        f'  File "{TORCH}", line 3252, in all_reduce',
        "    work.wait()",
        message,
    ]
    prefix = "" if rank is None else f"[rank{rank}]: "
    return "".join(f"{prefix}{line}\n" for line in lines).encode()


CLOSED = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34201. "
    "This is typically caused by a remote worker crashing."
)
RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:36232: Connection reset by peer. GLHF! 🏖️"


# --- whose fault it was ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message", [*rows("unit/diagnosis", "an_exception_that_blames_another_rank_is_secondary"), CLOSED, RESET]
)
def test_an_exception_that_blames_another_rank_is_secondary(message: str) -> None:
    assert is_secondary(traceback_of(message))
    assert is_secondary(traceback_of(message, rank=None))


@from_table
def test_last_words_without_a_traceback_may_blame_another_rank_too(tail: str) -> None:
    assert is_secondary(tail.encode())


@from_table
def test_an_exception_is_the_cause_where_the_process_was_aborted_on_its_way_out(after: str, headline: str) -> None:
    tail = traceback_of("ValueError: bad batch") + after.encode()
    assert headline in explain(1, -6, tail).headline
    assert explain(1, -6, after).headline == "rank 1 was killed by SIGABRT"


@from_table
def test_an_exception_of_its_own_is_not_secondary(message: str) -> None:
    assert not is_secondary(traceback_of(message))


def test_a_rank_that_open_mpi_ends_without_an_exception_has_lost_a_peer() -> None:
    assert is_secondary(b"\n", 14)
    assert is_secondary(b"[node1:00412] PMIX ERROR: PMIX_ERR_UNREACH in file ptl_base_sendrecv.c at line 213\n", 14)
    assert not is_secondary(b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB.\n", 14)
    assert not is_secondary(b"ValueError: no data\n", 14)
    assert not is_secondary(b"", 1)
    assert not is_secondary(b"", None)


@pytest.mark.parametrize("status", [1, -signal.SIGSEGV])
@from_table
def test_a_warning_that_torch_prints_on_every_node_without_dns_is_no_cause(warning: str, status: int) -> None:
    tail = f"[W1121 22:53:50.873250206 socket.cpp:764] [c10d] {warning}\n"
    assert explain(1, status, tail) == msgspec.structs.replace(
        explain(1, status, ""), detail=explain(1, status, tail).detail
    )


def test_silence_is_not_secondary() -> None:
    assert not is_secondary(b"")


def test_warnings_after_the_traceback_do_not_make_a_cause_secondary() -> None:
    tail = traceback_of("ValueError: bad batch") + b"[W1121 socket.cpp:1] Connection closed by peer\n"
    assert not is_secondary(tail)


# --- tracebacks ------------------------------------------------------------------------------------------------------


@from_table
def test_the_end_of_a_script_is_explained(source: str, said: dict[str, Any], traceback: str, tmp_path: Path) -> None:
    """`said`: the headline without the rank, a pattern of the detail, words of the hint, and whether another rank is to blame. `traceback`: its pattern."""
    status, tail = run(tmp_path, source.replace("CLOSED", repr(CLOSED.partition(": ")[2])))
    found = explain(1, status, tail)
    assert found.headline == f"rank 1 {said['headline']}"
    assert re.fullmatch(said.get("detail", ".*"), found.detail), found.detail
    assert all(word in found.hint for word in said.get("hint", ()))
    assert is_secondary(tail) == said.get("secondary", False)
    assert re.fullmatch(traceback, found.traceback, re.DOTALL), found.traceback


def test_torchs_rank_prefix_is_removed() -> None:
    assert (
        last_traceback(traceback_of("ValueError: bad", rank=13))
        == traceback_of("ValueError: bad", rank=None).decode()[:-1]
    )


def test_the_colours_of_python_3_13_are_removed() -> None:
    tail = (
        b'Traceback (most recent call last):\n  File \x1b[35m"train.py"\x1b[0m, line \x1b[35m2\x1b[0m, in '
        b"\x1b[35m<module>\x1b[0m\n    \x1b[31mf\x1b[0m\x1b[1;31m()\x1b[0m\n"
        b"\x1b[1;35mValueError\x1b[0m: \x1b[35mbad\x1b[0m\n"
    )
    assert last_traceback(tail) == (
        'Traceback (most recent call last):\n  File "train.py", line 2, in <module>\n    f()\nValueError: bad'
    )


def test_a_progress_bar_on_the_same_line_is_not_part_of_it() -> None:
    tail = b"\r 12%|x| 12/100 [00:01<00:09, 3.5it/s]" + traceback_of("ValueError: bad", rank=None)
    assert last_traceback(tail).startswith("Traceback (most recent call last):\n")


def test_a_message_of_several_lines_ends_where_others_begin_to_print() -> None:
    tail = traceback_of("ValueError: bad", rank=None) + b"shape (3,)\n[W1121 12:00:00 x.cpp:1] Warning: not destroyed\n"
    assert last_traceback(tail).endswith("\nValueError: bad\nshape (3,)")


def test_native_frames_of_a_message_are_left_out() -> None:
    message = "RuntimeError: boom\nException raised from f at a.cpp:1 (most recent call first):\n"
    message += "".join(f"frame #{number}: <unknown function> + 0x1 (0x2 in lib.so)\n" for number in range(90))
    shown = last_traceback(traceback_of(message.rstrip()))
    assert shown.endswith("RuntimeError: boom")


def test_a_tail_without_a_traceback_gives_none() -> None:
    assert last_traceback(b"all is well\n") == ""
    assert last_traceback(b"") == ""


def test_a_traceback_stays_short_and_keeps_both_its_ends(tmp_path: Path) -> None:
    calls = "".join(f"def f{number}():\n    f{number + 1}()\n" for number in range(100))
    _, tail = run(tmp_path, f"{calls}def f100():\n    raise ValueError('x' * 100_000)\nf0()\n")
    shown = last_traceback(tail[:60_000])
    assert len(shown.splitlines()) <= MAX_LINES
    assert len(shown.encode()) <= MAX_BYTES
    assert "in <module>" in shown
    assert "ValueError: xxx" in shown
    assert "  …" in shown.splitlines()


def test_a_traceback_of_many_short_lines_is_cut_in_the_middle() -> None:
    frames = [f'  File "a.py", line {number}, in f' for number in range(100)]
    lines = ["Traceback (most recent call last):", *frames, "ValueError: bad"]
    shown = last_traceback("\n".join(lines).encode()).splitlines()
    assert len(shown) == MAX_LINES
    cut = shown.index("  …")
    assert shown[:cut] == lines[:cut]
    assert shown[cut + 1 :] == lines[cut + 1 - MAX_LINES :]


# --- exit statuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [9, 11, 7, 6, 4, 15, 12, 24])
def test_every_common_signal_is_named_and_explained(number: int) -> None:
    said = explain(2, -number, b"")
    assert said.headline == f"rank 2 was killed by {signal.Signals(number).name}"
    assert said.detail
    assert said.hint


@pytest.mark.parametrize(
    ("status", "tail"), [(-2, b""), (-2, traceback_of("KeyboardInterrupt")), (1, traceback_of("KeyboardInterrupt"))]
)
def test_ctrl_c_is_called_an_interruption(status: int, tail: bytes) -> None:
    said = explain(2, status, tail)
    assert said.headline == "rank 2 was interrupted"
    assert "traceback ends" not in said.hint


@from_table
def test_a_status_is_explained_with_what_was_said(status: int | None, tail: str, said: dict[str, Any]) -> None:
    """A line of `tail` that begins with `raises` stands for the traceback of what it names. `said`: as for the end of a script."""
    whole = re.sub(
        "^raises (.*)$", lambda line: traceback_of(line[1], rank=None).decode().rstrip(), tail, flags=re.MULTILINE
    )
    found = explain(1, status, whole, said.get("reason", ""))
    assert found.headline == f"rank 1 {said['headline']}"
    assert re.fullmatch(said.get("detail", ".*"), found.detail), found.detail
    assert all(word in found.hint for word in said.get("hint", ()))


@pytest.mark.parametrize("thread", ["Current thread 0x00007f8b47063b80", "Current thread 0x00007f8b47063b80 [python]"])
def test_the_python_line_of_a_crash_is_shown_where_faulthandler_has_printed_it(thread: str) -> None:
    frames = '  File "/opt/python/ctypes/__init__.py", line 519 in string_at\n  File "/home/ada/train.py", line 3 in forward\n'
    tail = f"step 1\nFatal Python error: Segmentation fault\n\n{thread} (most recent call first):\n{frames}\nExtension modules: torch._C\n"
    said = explain(1, -signal.SIGSEGV, tail.encode())
    assert said.traceback == f"Stack of the thread that crashed (most recent call first):\n{frames.rstrip()}"
    assert "PYTHONFAULTHANDLER" not in said.hint + said.fix
    assert "PYTHONFAULTHANDLER" in explain(1, -signal.SIGSEGV, b"step 1\n").fix
    assert explain(1, 1, tail.encode()).traceback == ""


def test_the_python_line_of_a_crash_is_that_of_the_thread_that_crashed() -> None:
    other = (
        'Thread 0x00007f8b40000b80 (most recent call first):\n  File "/opt/python/threading.py", line 982 in run\n\n'
    )
    frame, start = (
        '  File "/home/ada/train.py", line 3 in forward\n',
        '  File "/runs/x/library/4b83/forked.py", line 185 in run_program\n',
    )
    begin, current = (
        "Fatal Python error: Segmentation fault\n\n",
        "Current thread 0x00007f8b47063b80 (most recent call first):\n",
    )
    said = explain(1, -signal.SIGSEGV, f"{begin}{other}{current}{frame}{start}".encode())
    assert said.traceback == f"Stack of the thread that crashed (most recent call first):\n{frame.rstrip()}"
    assert "PYTHONFAULTHANDLER" in explain(1, -signal.SIGSEGV, f"{begin}{other}{other}".encode()).fix


# --- known causes ----------------------------------------------------------------------------------------------------


def test_a_missing_module_of_dash_m_is_named(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "no_such_package"], stderr=subprocess.PIPE)
    said = explain(0, done.returncode, done.stderr)
    assert said.headline == "rank 0 exited with 1"
    assert "no_such_package" in said.hint


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(tmp_path / "no.py")], stderr=subprocess.PIPE)
    said = explain(0, done.returncode, done.stderr)
    assert said.detail == f"there is no script {tmp_path / 'no.py'}"
    assert "recipe.script" in said.hint


@from_table
def test_known_causes_are_explained(message: str, in_detail: str, in_hint: str) -> None:
    said = explain(0, 1, traceback_of(message))
    assert in_detail in said.detail
    assert in_hint in said.hint


# --- hostile tails ---------------------------------------------------------------------------------------------------

BITS = entries("unit/diagnosis", "bits")


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(BITS).map(str.encode) | st.binary(max_size=6), max_size=40).map(b"".join),
    st.none() | st.integers(-130, 260),
    st.sampled_from(["", "can't start: No such file or directory", "lost {x}"]),
)
@settings(deadline=None, max_examples=400)
def test_no_tail_makes_it_fail(tail: bytes, status: int | None, reason: str) -> None:
    said = explain(5, status, tail, reason)
    assert said.headline.startswith("rank 5 ")
    assert said.hint
    assert "\n" not in said.detail
    assert said.traceback == last_traceback(tail)
    assert len(said.traceback.splitlines()) <= MAX_LINES
    assert len(said.traceback.encode()) <= MAX_BYTES
    is_secondary(tail)


@pytest.mark.parametrize("bit", BITS)
def test_a_hostile_tail_is_explained_in_time(bit: str) -> None:
    tail = (bit.encode() * 70_000)[:70_000]
    begin = time.process_time()
    explain(0, 1, tail)
    explain(0, -6, tail)
    assert time.process_time() - begin < 5


def test_a_rank_that_a_user_has_killed_has_no_advice_beside_what_the_restart_key_does():
    said = explain(2, -9, b"", by="alice")
    assert (said.cause, said.hint) == ("asked", "")
    assert "alice sent it with rankdeck kill" in said.detail


def test_frames_of_our_own_wrappers_are_left_out():
    text = entries("unit/diagnosis", "frames_of_our_own_wrappers_are_left_out").encode()
    shown = explain(0, 1, text).traceback
    assert "_autoload" not in shown
    assert "original(" not in shown
    assert len(shown.splitlines()) == 6
