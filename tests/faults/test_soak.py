"""Random faults, as `benchmarks/soak.py` makes them, for a short while."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def test_runs_survive_random_faults_of_every_process_and_no_step_is_computed_differently(tmp_path: Path) -> None:
    """The benchmark fails where a run stands still, needs a command, or leaves a process. Its limits do not depend on the machine's load."""
    command = [sys.executable, "benchmarks/soak.py", "--kills", "20", "--seed", "20", "--evidence", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKDECK_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
