"""Tasks of one Slurm step that launch the same: `srun --ntasks=8 rankdeck launch train.toml`. The first one starts the run, and the others wait for it."""

import contextlib
import hashlib
import os
import time
from pathlib import Path

from engine.core.errors import CheckError
from engine.linux.files import replace_file
from engine.linux.processes import MARK
from engine.runs.paths import private_folder, state_folder
from engine.runs.record import place_here

LAUNCH_TIME, POLL = 600.0, 0.2
"""Seconds in which the first task has launched the run, since its plan may wait for a busy controller; and between two looks at that."""

KEPT = 7 * 86_400.0  # seconds after which a claim of an earlier step is removed


def claim_file(profile: bytes) -> Path | None:
    """Where tasks agree on who launches a profile; None: this process is no such task, or belongs to a rank of a run. `profile`: as TOML, with the
    arguments. The file has the number of the task that launches, and the run: nothing before it is launched, `-` if the launch has failed."""
    place, step = place_here(), os.environ.get("SLURM_STEP_ID", "")
    if place is None or not step or os.environ.get("SLURM_STEP_NUM_TASKS", "1") == "1" or MARK in os.environ:
        return None
    digest = hashlib.sha256(b"\0".join([profile, os.fsencode(os.getcwd())])).hexdigest()[:16]
    return private_folder(state_folder() / "steps") / f"{place.job}.{place.restarts}.{step}-{digest}"


def claim(file: Path) -> bool:
    """Whether this task launches. A task that launches the same again does so again."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        if file.read_text().partition(" ")[0] != os.environ["SLURM_PROCID"]:
            return False
    name_run(file, "")
    with contextlib.suppress(OSError):
        for old in file.parent.iterdir():
            if time.time() - old.stat().st_mtime > KEPT:
                old.unlink()
    return True


def name_run(file: Path, run: str) -> None:
    """Tells the other tasks what this one has launched; `run`: see `claim_file`."""
    replace_file(file, f"{os.environ['SLURM_PROCID']} {run}".encode())


def wait_claimed(file: Path) -> tuple[str, str]:
    """Waits until a task has launched a run. Returns the task and the run. Raises CheckError: it has failed, or does not launch in time."""
    end, task, run = time.monotonic() + LAUNCH_TIME, "", ""
    while not run and time.monotonic() < end:
        time.sleep(POLL)
        task, _, run = file.read_text().partition(" ")
    if run in ("", "-"):
        why = "could not launch the run" if run else f"has not launched the run within {LAUNCH_TIME:g} s"
        raise CheckError(f"task {task} of this step {why}", hint="the output of that task tells why")
    return task, run
