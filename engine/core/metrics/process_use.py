"""Processor time, memory and I/O of a rank's process, as its node reports them every few seconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MEBIBYTE = 1 << 20


class ProcessUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that a rank's process uses, without its children such as data loaders. None: unknown."""

    cpu: int
    """Percent of one core: 400 is four cores."""
    memory: int
    """Bytes in physical memory, in whole mebibytes."""
    read: int | None
    """Bytes a second that it has read, from files, pipes and everything else, to two digits."""
    written: int | None
    """The same for writing."""

    @property
    def transferred(self) -> int | None:
        """Bytes a second read and written; None: unknown."""
        return None if self.read is None or self.written is None else self.read + self.written


def process_use(values: Sequence[int | None]) -> ProcessUse:
    """A node's report about one rank (percent of a core, bytes of memory, bytes moved a second), rounded so that the same use makes no news."""
    cpu, memory, read, written = values
    return ProcessUse(
        cpu=cpu or 0, memory=round((memory or 0) / MEBIBYTE) * MEBIBYTE, read=_rough(read), written=_rough(written)
    )


def _rough(rate: int | None) -> int | None:
    return None if rate is None else int(float(f"{rate:.2g}"))
