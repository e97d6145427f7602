"""Packs the `rankdeck` package for nodes: a rank needs nothing of ours that was not sent."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

SUFFIXES = frozenset({".py", ".json", ".txt", ".typed"})


class Library(NamedTuple):
    """A packed package. `name` is made from its content, so an unpacked one never needs a second look."""

    name: str
    tar: str


@cache
def pack(package: Path) -> Library:
    """Packs a package folder.

    Args:
        package: `rankdeck/`, whose own name becomes the top folder of the archive.

    Returns:
        The archive in base64 and its name: the same bytes for the same files, whenever it is made.
    """
    files = sorted(path for path in package.rglob("*") if path.is_file() and path.suffix in SUFFIXES)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path in files:
            data = path.read_bytes()
            member = tarfile.TarInfo(str(Path(package.name) / path.relative_to(package)))
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    digest = hashlib.sha256(raw.getvalue()).hexdigest()[:16]
    return Library(name=digest, tar=base64.b64encode(raw.getvalue()).decode())
