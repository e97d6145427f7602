"""The `rankdeck` command, and the supervisor processes that it starts.

The engine's folder goes to the front of `sys.path` before anything of it is imported: a training repository on PYTHONPATH may
well have an `engine.py` of its own, and it must not be taken for ours.
"""

from __future__ import annotations

import gc
import sys
from functools import partial
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = str(Path(__file__).resolve().parent)


def main() -> int:
    """Runs the command line. Returns the exit status."""
    sys.path.insert(0, ROOT)
    gc.disable()  # modules that are imported are no garbage: looking for it takes a fifteenth of the time
    program = _program(sys.argv[1:])
    gc.freeze()
    gc.enable()
    return program()


def _program(words: list[str]) -> Callable[[], int]:
    """Imports what the words of the command line need."""
    if len(words) > 1 and words[0] == "supervise":
        from engine.supervisor.main import main as supervise

        return partial(supervise, *words[1:3])
    if words == ["supervise"]:
        from engine.supervisor.main import main_early

        return main_early
    if len(words) == 2 and words[0] == "standby":
        from engine.supervisor.main import main_standby

        return partial(main_standby, *words[1:])
    if len(words) == 2 and words[0] == "in-job":
        from engine.commands.in_job import main as run_in_job

        return partial(run_in_job, words[1])
    if words[:1] == ["start-queued"] and len(words) < 3:
        from engine.client.sweeps.starter import main as start_queued

        return partial(start_queued, *words[1:])
    if words[:1] in (["run"], ["launch"]) and "--help" not in words:
        from engine.client.early import start_early

        start_early()
    from engine.commands.cli import main as command

    return command


if __name__ == "__main__":
    sys.exit(main())
