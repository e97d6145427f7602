"""Runs a command on a PATH without what tests install: `python bare.py COMMAND…`. What a user's machine lacks must not matter.

Everything else that is on the PATH stays. Nothing on the machine changes, so the system's own folders still hold libraries of MPI.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MISSING = re.compile(r"(mpi|orte|ompi|prte|hydra|ssh|scp|sftp|tmux|rsync|nft|gdb|srun|sbatch|squeue).*|ip")
"""Programs that a fresh image of Python does not have."""


def main() -> int:
    """Runs the command. Returns its exit status."""
    with tempfile.TemporaryDirectory(prefix="bare") as folder:
        for place in reversed(os.environ["PATH"].split(os.pathsep)):
            for program in sorted(Path(place).glob("*")) if place else ():
                link = Path(folder, program.name)
                link.unlink(missing_ok=True)
                if not MISSING.fullmatch(program.name):
                    link.symlink_to(program)
        environment = {**os.environ, "PATH": folder}
        environment.pop("CI", None)  # tests that need one of these skip
        return subprocess.run(sys.argv[1:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
