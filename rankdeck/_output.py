"""Standard output and error of a rank on a full disk: what does not fit is lost, and training goes on. rankdeck gives a rank files
instead of pipes. On a full disk or quota, `print` would raise OSError, which ends most training scripts."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys

FULL = (errno.ENOSPC, errno.EDQUOT)

_write = io.FileIO.write  # found faster than by `super()`


class PatientFile(io.FileIO):
    """An open descriptor that drops what a full disk does not take, and says how much when there is room again."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._lost = 0

    def write(self, data: object) -> int | None:  # type: ignore[override]
        """Writes bytes. Returns how many were taken, the lost ones too; None if the descriptor would block."""
        try:  # with `python -u`, each `print` comes here: keep it short
            if self._lost and not self._tell_loss():
                return self._lose(data)
            return _write(self, data)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno not in FULL:
                raise
            return self._lose(data)

    def _tell_loss(self) -> bool:
        """Writes how much was lost. Returns whether there was room for it."""
        note = f"\nrankdeck: {self._lost} bytes of output are lost here: the disk was full\n".encode()
        if super().write(note) != len(note):
            return False
        self._lost = 0
        return True

    def _lose(self, data: object) -> int:
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        self._lost += size
        return size


def outlive_full_disks() -> None:
    """Replaces `sys.stdout` and `sys.stderr` of a rank, if they are what the interpreter has made of its files. Never raises."""
    if not os.environ.get("RANKDECK_RUN"):
        return
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            _replace(name, descriptor)


def _replace(name: str, descriptor: int) -> None:
    old = getattr(sys, name)
    if type(old) is not io.TextIOWrapper or old.fileno() != descriptor:
        return  # the script has its own, or this one is in place
    is_direct = isinstance(old.buffer, io.FileIO)  # python -u
    if isinstance(old.buffer if is_direct else old.buffer.raw, PatientFile):
        return
    old.flush()
    raw = PatientFile(descriptor)
    raw.name = f"<{name}>"  # as the interpreter names it
    new = io.TextIOWrapper(
        raw if is_direct else io.BufferedWriter(raw),
        encoding=old.encoding,
        errors=old.errors,
        line_buffering=old.line_buffering,
        write_through=old.write_through,
    )
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)
