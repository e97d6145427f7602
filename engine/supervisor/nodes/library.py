"""Packs the `rankdeck` package for nodes, with the programs that agents run there."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from engine.installed import APP
from engine.node import (
    bundle,
    forked,
    gpus,
    internals,
    limits,
    mpi_proxy,
    preload,
    rank_end,
    sources,
    template,
    titles,
    user_template,
)

SUFFIXES = frozenset({".py", ".json", ".txt", ".typed"})


_MODULES = (titles, template, user_template, internals, forked, rank_end, preload, sources, limits, mpi_proxy, gpus)
_PROGRAMS = tuple((module.__name__.rpartition(".")[2], str(module.__file__)) for module in _MODULES)
"""Programs of one file that an agent or a template runs. The probe, another one, is made of several modules."""
_DISTRIBUTION = "rankdeck_ranks-1.dist-info"
_METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: rankdeck-ranks\nVersion: 1\n",
    "entry_points.txt": "[torch.backends]\nrankdeck = rankdeck._autoload:register\n",
}
"""`import torch` looks for entry points in the module search path; this one registers the process groups of rankdeck."""


class Library(NamedTuple):
    """A packed package. `name` is a hash of its content, so that nodes recognise an unpacked one."""

    name: str
    tar: str


@cache
def pack(package: Path) -> Library:
    """Packs a package folder. `package`: `rankdeck/`. It becomes `python/rankdeck/`, and ranks search for modules in `python`. Returns the
    archive in base64 and its name. The same files always give the same bytes."""
    names = sorted(
        path.relative_to(package) for path in package.rglob("*") if path.is_file() and path.suffix in SUFFIXES
    )
    members = [(Path("python", package.name, name), package / name) for name in names if name.parts[0] != APP]
    members += [(Path(f"{name}.py"), Path(source)) for name, source in _PROGRAMS]
    texts = [(Path("python", _DISTRIBUTION, name), text.encode()) for name, text in _METADATA.items()]
    texts.append((Path("probe.py"), bundle.program("probe", "serve:main")))
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, data in [*((name, path.read_bytes()) for name, path in members), *texts]:
            member = tarfile.TarInfo(str(name))
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    digest = hashlib.sha256(raw.getvalue()).hexdigest()[:16]
    return Library(name=digest, tar=base64.b64encode(raw.getvalue()).decode())
