"""Ends a recipe that can't go on, with one line."""

import os
import sys
from typing import NoReturn

import torch.distributed as dist

ARGUMENTS = 2  # the status of a recipe whose arguments do not fit each other, or the number of ranks


def refuse(message: str, status: int = 1) -> NoReturn:
    """Ends this rank with a line on stderr. Every rank of the group calls it. The group is left first: threads of gloo that still run
    when the interpreter ends can abort the process. And it is left together: a rank that still connects to one that has left would end
    with torch's traceback. `message`: the line; empty: it was printed already."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    if message:
        print(message, file=sys.stderr)  # noqa: T201
    raise SystemExit(status)


def end_at_once(message: str) -> NoReturn:
    """Ends this process with status 1 and a line on stderr, where threads wait for peers that are gone: they would keep the interpreter."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201
    sys.stdout.flush()
    os._exit(1)
