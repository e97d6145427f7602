"""The standard streams of a rank are those of the interpreter, which outlive a full disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("flags", [[], ["-u"]], ids=["buffered", "direct"])
def test_streams_of_a_rank_have_the_names_of_the_interpreter(flags: list[str]):
    program = "import sys, rankdeck; print(sys.stdout.name, sys.stderr.name, type(sys.stdout.buffer).__name__)"
    environment = {**os.environ, "RANKDECK_RUN": "run", "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[:2] == ["<stdout>", "<stderr>"]
    assert done.stdout.split()[2] == ("PatientFile" if flags else "BufferedWriter")
