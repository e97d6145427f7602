"""Ends a recipe that can't go on, with one line."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import torch.distributed as dist


def refuse(message: str | int) -> NoReturn:
    """Ends this rank with status 1 and a line on stderr. Every rank of the group calls it.

    The group is left first: threads of gloo that still run when the interpreter ends can abort the process.

    Args:
        message: the line; 1: it was printed already.

    Raises:
        SystemExit: always.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    raise SystemExit(message)


def end_at_once(message: str) -> NoReturn:
    """Ends this process with status 1 and a line on stderr, where threads wait for peers that are gone: they would keep the interpreter."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201
    sys.stdout.flush()
    os._exit(1)
