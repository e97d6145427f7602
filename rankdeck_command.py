"""The `rankdeck` command, and the supervisor processes that it starts.

The engine's folder goes to the front of `sys.path` before anything of it is imported: a training repository on PYTHONPATH may
well have an `engine.py` of its own, and it must not be taken for ours.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent)


def main() -> int:
    """Runs the command line. Returns the exit status."""
    sys.path.insert(0, ROOT)
    if len(sys.argv) > 2 and sys.argv[1] == "supervise":
        from engine.supervisor.main import main as supervise

        return supervise(*sys.argv[2:4])
    if len(sys.argv) in (3, 6) and sys.argv[1] == "standby":
        from engine.supervisor.main import main_standby

        return main_standby(*sys.argv[2:])
    if len(sys.argv) == 3 and sys.argv[1] == "in-job":
        from engine.commands.in_job import main as run_in_job

        return run_in_job(sys.argv[2])
    from engine.commands.cli import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
