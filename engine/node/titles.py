"""Titles of processes: what `ps` and `top` show of them."""

from __future__ import annotations

import contextlib
import os

COMMAND_LENGTH = 15  # bytes of the short name that `top` shows: TASK_COMM_LEN of Linux without the NUL


def show_title(role: str, about: str = "") -> None:
    """Makes `ps` show `rankdeck: ROLE ABOUT` instead of this process's command, cut to its length.

    The kernel shows the memory in which it has placed the arguments. The title ends with NUL inside of it, because the environment behind it
    has the run's mark, by which the run's processes are found. Without /proc/self/mem nothing happens. `role`: what the process is: `agent`.
    `about`: the run, and the node: `train-x7k2 gpu01`."""
    show_command([f"rankdeck: {role} {about}".rstrip()], f"rankdeck-{role}")


def short_name() -> str:
    """Returns this process's short name; empty if it is unknown. Imports change it: torch makes it `pt_main_thread`."""
    with contextlib.suppress(OSError), open("/proc/self/comm", errors="surrogateescape") as name:
        return name.read().rstrip("\n")
    return ""


def show_command(argv: list[str], short: str) -> None:
    """Makes `ps` show the command `argv` instead of this process's, as if it had been executed. `short`: see `short_name`."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as name:
        name.write(os.fsencode(short)[:COMMAND_LENGTH])
    with contextlib.suppress(OSError), open("/proc/self/stat", "rb") as status:
        begin, end = (int(field) for field in status.read().rpartition(b")")[2].split()[45:47])
        shown = b"\0".join(map(os.fsencode, argv))[: max(0, end - begin - 1)]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(shown.ljust(end - begin, b"\0"))
