"""A supervisor works with an agent of an earlier version: a run may be older than the rankdeck that looks after it."""

from __future__ import annotations

import lzma
import shlex
import sys
from pathlib import Path

import pytest

from tests.conftest import WriteProfile, WriteScript
from tests.support import ROOT, Deck, wait_until

OLD_AGENT = ROOT / "tests/data/agent_7561a72.py.xz"
"""The agent when it was a single file."""

BOOT_OLD = """
import os, sys
left = int(sys.argv[1])
while left:
    left -= len(os.read(0, left) or sys.exit(98))
path = sys.argv[2]
exec(compile(open(path).read(), path, "exec"))
"""
"""Reads the program that was sent, and runs another in its place."""

NAP = "import time\nprint('up', flush=True)\ndef nap():\n    time.sleep(600)\nnap()"


@pytest.fixture
def old_python(tmp_path: Path) -> Path:
    """A Python that boots the old agent in place of the one that it is sent."""
    source, python = tmp_path / "agent_7561a72.py", tmp_path / "old-python"
    source.write_bytes(lzma.decompress(OLD_AGENT.read_bytes()))
    real, program, path = (shlex.quote(str(word)) for word in (sys.executable, BOOT_OLD, source))
    python.write_text(
        f'#!/bin/sh\nif [ "$1 $2 $3" = "-I -S -c" ]; then exec {real} -I -S -c {program} "$5" {path}; fi\nexec {real} "$@"\n'
    )
    python.chmod(0o700)
    return python


def has_old_agent(deck: Deck, run: str) -> bool:
    return "agent_7561a72.py" in Path(f"/proc/{deck.agent(run)}/cmdline").read_text()


def test_an_old_agent_tells_stacks_and_stops(
    rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile, old_python: Path
):
    launch = {"python": str(old_python), "warm": True}
    run = rankdeck.launch(write_profile(write_script("nap.py", NAP), ranks=2, launch=launch))
    for rank in range(2):
        rankdeck.wait_log(run, rank, b"up")
    assert has_old_agent(rankdeck, run)
    wait_until(lambda: "nap" in rankdeck("stacks", run).stdout, what="an answer in time, on a busy machine too")
    rankdeck("stop", run)
    rankdeck.wait_state(run, "stopped")


def test_an_old_agent_brings_a_run_to_its_end(
    rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile, old_python: Path
):
    script = write_script("short.py", "print('done')")
    run = rankdeck.launch(write_profile(script, ranks=2, launch={"python": str(old_python)}))
    rankdeck.wait_state(run, "succeeded")
    assert [rankdeck.log(run, rank) for rank in range(2)] == [b"done\n"] * 2
