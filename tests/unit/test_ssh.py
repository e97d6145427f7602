"""Why a node has no agent is told from what ssh, shells, PAM and Python really say."""

import re
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.failures import ssh
from engine.core.failures.known import Cause, causes
from engine.core.failures.services import ended_words
from engine.core.plan.plan import Reach
from engine.launchers import local
from engine.launchers.setup import setup_input
from engine.node.agent import wire
from tests.support import entries, from_table, rows

SAID = rows("unit/ssh", "said")  # name, status, what was said, the fact, and a part of the hint

WORTH_A_RETRY = set(entries("unit/ssh", "worth_a_retry"))


@pytest.mark.parametrize(("name", "status", "said", "fact", "hint"), SAID, ids=[row[0] for row in SAID])
def test_what_is_said_is_told_in_words(name, status, said, fact, hint):
    trouble = ssh.explain("gpu01", status=status, said=said.encode(), python="python9", setup=True)
    assert trouble.fact == fact
    assert hint in trouble.hint
    assert trouble.retry == (name in WORTH_A_RETRY)
    assert "{" not in trouble.text


@pytest.mark.parametrize(
    "cause",
    [cause for cause in causes() if cause.speaker not in ("", "slurm", "pbs")],
    ids=lambda cause: f"{cause.id} {cause.pattern[:30]}",
)
def test_every_cause_of_a_failed_connection_is_shown(cause: Cause) -> None:
    assert any(re.search(cause.pattern, said.replace("\r\n", "\n"), re.MULTILINE) for _, _, said, _, _ in SAID)


def test_silence_is_told():
    trouble = ssh.explain("gpu01", status=None, said="", python="python9", setup=False)
    assert trouble == ssh.Trouble(
        fact="it did not answer in time", hint="check the node, and how long python9 takes to start there"
    )
    assert trouble.text == f"{trouble.fact}; {trouble.hint}"


def test_the_reserved_status_means_nothing_where_no_setup_ran():
    trouble = ssh.explain("gpu01", status=ssh.EXIT_SETUP_FAILED, said="", python="python9", setup=False)
    assert trouble.fact == "the command there ended with exit 97"


def test_words_of_ssh_count_only_where_ssh_has_failed():
    said = "Connection closed by 10.0.0.7 port 22\nann@gpu02: Permission denied (publickey).\n"
    trouble = ssh.explain("gpu01", status=3, said=said, python="python9", setup=False)
    assert trouble.fact == "the command there ended with exit 3: ann@gpu02: Permission denied (publickey)."


def test_statuses_are_those_of_the_agent():
    assert (wire.EXIT_CUT_OFF, wire.EXIT_FAILED) == (ssh.EXIT_CUT_OFF, ssh.EXIT_REFUSED)


@from_table
def test_real_setup_lines_that_fail_are_told(setup, fact, tmp_path):
    argv = local.argv("gpu01", [sys.executable, "-c", ""], Reach(setup=setup))
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, input=setup_input(setup), capture_output=True, env=env, check=False)
    assert ssh.explain("gpu01", status=done.returncode, said=done.stderr, python="python3", setup=True).fact == fact


# --- nothing that is said is trusted ---------------------------------------------------------------------------------

STATUSES = st.none() | st.integers(-70, 300) | st.sampled_from([1, 97, 98, 99, 126, 127, 255])
FRAGMENTS = st.sampled_from([line for row in SAID for line in row[2].splitlines(keepends=True)])


@given(
    STATUSES, st.lists(FRAGMENTS | st.text(max_size=40) | st.just("\x1b[31m\x1b]0;x\x07\u202e\r\n{node}{0}")), st.text()
)
def test_whatever_is_said_makes_two_short_printable_lines(status, parts, python):
    trouble = ssh.explain("gpu01", status=status, said="".join(parts), python=python, setup=True)
    for text in (trouble.fact, trouble.hint):
        assert text.isprintable()
        assert 0 < len(text) <= ssh.MAX_LINE
    assert ssh.explain("gpu01", status=status, said="".join(parts).encode(errors="replace"), python=python, setup=True)
    for text in ended_words("it ended", status, "".join(parts), python):
        assert text.isprintable()
        assert len(text) < 2000


def test_control_sequences_reach_nobody():
    said = b"ssh: connect to host \x1b]0;owned\x07\x1b[2Jgpu\xe2\x80\xae01\xff port 22: Connection refused\r\n"
    fact = ssh.explain("gpu01", status=255, said=said, python="python9", setup=False).fact
    assert fact == "no sshd listens on gpu01\ufffd, port 22"


@pytest.mark.parametrize(
    "line",
    [
        *rows("unit/ssh", "a_flood_is_looked_at_in_no_time"),
        "a@b: Permission denied (" + "publickey," * 40 + "\n",
        "x" * 100_000 + "\n",
        "\x1b[" * 5000 + "\n",
        "a: line 1: " * 30 + "\n",
    ],
)
def test_a_flood_is_looked_at_in_no_time(line):
    begin = time.process_time()
    ssh.explain("gpu01", status=255, said=line * (10 * ssh.MAX_LINES), python="python9", setup=False)
    assert time.process_time() - begin < 5
