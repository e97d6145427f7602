"""Removes files of an ended run that only a run with processes needs. A sixth stays, for the history and the log."""

import contextlib
import os
import shutil

from engine.linux.locks import try_lock
from engine.runs.paths import RunPaths

_SHOWN = (".out", ".err", ".metrics")  # files of ranks whose readers expect them, also without content


def remove_needless(paths: RunPaths) -> None:
    """Removes the code and the state of agents on this machine that have ended, the secrets of stores, and files without content; at last
    the files that say where the supervisor is."""
    for folder in paths.nodes.glob("*/"):
        with contextlib.suppress(OSError):
            if (lock := try_lock(folder / "agent.lock", os.O_RDWR)) is not None:
                shutil.rmtree(folder / "library", ignore_errors=True)  # if runs could not share one
                for file in folder.iterdir():
                    if file.suffix != ".log" or not file.stat().st_size:
                        file.unlink()
                os.close(lock)
    for file in paths.folder.glob("attempt_*/*"):
        with contextlib.suppress(OSError):
            if file.name == "store.key" or not (file.suffix in _SHOWN or file.stat().st_size):
                file.unlink()
    for folder in (*paths.nodes.glob("*/"), paths.nodes):
        with contextlib.suppress(OSError):
            folder.rmdir()
    for file in (paths.numbers, paths.guards, paths.supervisor):
        file.unlink(missing_ok=True)
