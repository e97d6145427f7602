"""Asks Slurm why the job of a run is over."""

from __future__ import annotations

import asyncio

from engine.core.views.queue import FORMAT, end_words, parse_queue

PATIENCE = 10.0
"""Seconds for squeue to answer. Without an answer, the job has just ended."""

TRIES = 10
"""Seconds in which a job that is completing gets its last state, which tells why."""


async def why_ended(job: str) -> str:
    """Why a job is over, in words: `Slurm's job 12 has reached its time limit`."""
    for _ in range(TRIES):
        found = parse_queue(await _squeue(job)).get(job)
        if found is None or found.state != "COMPLETING":
            break
        await asyncio.sleep(1)
    return end_words(job, found)


async def _squeue(job: str) -> str:
    """What squeue says of a job; empty: it does not answer."""
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
        process.kill()
        await process.wait()
        return ""
    return said.decode(errors="replace")
