"""Runs programs that fetch what tests need."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class UnavailableError(Exception):
    """What tests need can't be had here; says why."""


def install(
    name: str, argv: Sequence[str], *, seconds: float, folder: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Runs an installer.

    Args:
        name: of it, for the error.
        argv: its command line.
        seconds: within which it must end.
        folder: its working directory; None: that of this process.
        env: variables besides those of this process.

    Raises:
        UnavailableError: it fails, or takes longer.
    """
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{name} took longer than {seconds} s") from None
    if done.returncode:
        raise UnavailableError(f"{name} failed: {(done.stderr or done.stdout).strip()[-300:]}")
