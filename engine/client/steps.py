"""Tasks of one Slurm step that launch the same: `srun --ntasks=8 rankdeck launch train.toml`. The first one starts the run, and the others wait for it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

import msgspec

from engine.client.early import MARK
from engine.core.errors import CheckError
from engine.linux.files import replace_file
from engine.runs.paths import private_folder, state_folder
from engine.runs.record import find_value, place_here

LAUNCH_TIME = 600.0
"""Seconds in which the first task has launched the run: its plan may wait for a busy controller."""

KEPT = 7 * 86_400.0
"""Seconds after which a claim of an earlier step is removed."""

POLL = 0.2


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A file in `steps`: the number of the task that launches, and its run. `run`: None: it is not launched yet; empty: the launch has failed."""

    task: str
    run: str | None = None


def claim_file(profile: bytes) -> Path | None:
    """Where tasks agree on who launches a profile; None: this process is no such task, or belongs to a rank of a run. `profile`: as TOML, with the
    arguments."""
    place, step = place_here(), os.environ.get("SLURM_STEP_ID", "")
    if place is None or not step or os.environ.get("SLURM_STEP_NUM_TASKS", "1") == "1" or MARK in os.environ:
        return None
    digest = hashlib.sha256(b"\0".join([profile, os.getcwd().encode("utf-8", "surrogateescape")])).hexdigest()[:16]
    return private_folder(state_folder() / "steps") / f"{place.job}.{place.restarts}.{step}-{digest}"


def claim(file: Path) -> bool:
    """Whether this task launches. A task that launches the same again does so again."""
    task = os.environ["SLURM_PROCID"]
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        known = find_value(file, Claim)
        if known is None or known.task != task:
            return False
    name_run(file, None)
    with contextlib.suppress(OSError):
        for old in file.parent.iterdir():
            if time.time() - old.stat().st_mtime > KEPT:
                old.unlink()
    return True


def name_run(file: Path, run: str | None) -> None:
    """Tells the other tasks what this one has launched; `run`: see `Claim`."""
    replace_file(file, msgspec.json.encode(Claim(task=os.environ["SLURM_PROCID"], run=run)))


def wait_claimed(file: Path) -> Claim:
    """The task that launches, once it has. Raises CheckError: it has failed, or does not launch in time."""
    end, known = time.monotonic() + LAUNCH_TIME, None
    while time.monotonic() < end:
        if (known := find_value(file, Claim)) is not None and known.run is not None:
            break
        time.sleep(POLL)
    if known is None or not known.run:
        raise CheckError("another task of this step could not launch the run", hint="its output tells why")
    return known
