"""Asks Slurm why the job of a run is over."""

from __future__ import annotations

import asyncio
import time

from engine.core.plan.batch.job import end_words
from engine.core.plan.batch.slurm import FORMAT, parse_queue

PATIENCE = 10.0
"""Seconds for squeue to answer."""

LONGEST = 60.0
"""Seconds in which a busy controller answers, and a job that is completing gets its last state, which tells why. After that, the job has
just ended."""

PAUSE = 1.0
"""Seconds between two questions."""


async def why_ended(job: str) -> str:
    """Why a job is over, in words: `Slurm's job 12 has reached its time limit`."""
    end = time.monotonic() + LONGEST
    while True:
        said = await _squeue(job)
        found = None if said is None else parse_queue(said).get(job)
        is_told = said is not None and (found is None or found.state != "COMPLETING")
        if is_told or time.monotonic() > end:
            return end_words(job, found)
        await asyncio.sleep(PAUSE)


async def _squeue(job: str) -> str | None:
    """What squeue says of a job; empty: nothing, or there is no squeue; None: it fails, or does not answer in time."""
    words = ("squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={FORMAT}")
    nothing = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=nothing, stdout=asyncio.subprocess.PIPE, stderr=nothing
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(PATIENCE):
            said, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return said.decode(errors="replace") if process.returncode == 0 else None
