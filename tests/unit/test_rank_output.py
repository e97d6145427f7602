"""Output of a rank on a full disk: what does not fit is lost, and the script goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PATIENCE, ROOT, entries

SCRIPT = entries("unit/rank_output", "script")


def run(tmp_path: Path, *words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, *words, "-c", SCRIPT, str(tmp_path / "out"), str(tmp_path / "err")]
        known = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **env}
        return subprocess.run(command, stdout=full, stderr=full, env=known, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("words", [(), ("-u",)], ids=["buffered", "direct"])
def test_a_rank_goes_on_and_its_output_says_what_is_lost(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run(tmp_path, *words, RANKDECK_RUN="run").returncode == 0
    out, err = (tmp_path / "out").read_text(), (tmp_path / "err").read_text()
    assert out == "\nrankdeck: 20001 bytes of output are lost here: the disk was full\nout again\n"
    assert err == "\nrankdeck: 6 bytes of output are lost here: the disk was full\nerror again\n"


def test_a_program_outside_a_run_keeps_its_own_output(tmp_path: Path) -> None:
    assert run(tmp_path).returncode != 0


@pytest.mark.parametrize("words", [(), ("-u",)], ids=["buffered", "direct"])
def test_streams_of_a_rank_have_the_names_of_the_interpreter(words: tuple[str, ...]) -> None:
    command = [sys.executable, *words, "-c", "import sys, rankdeck; print(sys.stdout.name, sys.stderr.name)"]
    known = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "RANKDECK_RUN": "run"}
    assert (
        subprocess.run(command, env=known, capture_output=True, text=True, check=True).stdout == "<stdout> <stderr>\n"
    )
