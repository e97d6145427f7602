"""Runs rsync to its end, or ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from engine.core.terminal_text import visible


async def run_rsync(argv: list[str]) -> str:
    """Runs it.

    Returns:
        Why it failed, on one line; empty where it did not.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        return "there is no rsync on this machine"
    except OSError as error:
        return f"rsync can't be started: {error.strerror}"
    try:
        _, said = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its ssh too
        await process.wait()
    if process.returncode == 0:
        return ""
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    # The last line only says that there was an error.
    words = next((line for line in lines if not line.startswith("rsync error:")), lines[-1] if lines else "")
    return visible(words)[:300] or f"rsync ended with {process.returncode}"
