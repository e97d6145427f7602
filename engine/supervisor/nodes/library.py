"""The `rankdeck` package for ranks, with the programs that agents run: packed for nodes, unpacked once on this machine."""

import base64
import contextlib
import hashlib
import io
import os
import shutil
import time
from functools import cache
from pathlib import Path

from engine.installed import APP, LIBRARY
from engine.launchers import bundle
from engine.launchers.bundle import NODE
from engine.linux.folders import private_folder
from engine.runs.paths import state_folder

SUFFIXES = frozenset({".py", ".json", ".txt", ".typed"})

_BESIDE = "titles template user_template internals forked rank_end preload sources limits".split()
_PROGRAMS = [NODE / f"{name}.py" for name in _BESIDE] + sorted((NODE / "programs").glob("[a-z]*.py"))
"""Programs of one file that an agent or a template runs. The probe, another one, is made of several modules."""
_DISTRIBUTION = "rankdeck_ranks-1.dist-info"
_METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: rankdeck-ranks\nVersion: 1\n",
    "entry_points.txt": "[torch.backends]\nrankdeck = rankdeck._autoload:register\n",
}
"""`import torch` looks for entry points in the module search path; this one registers the process groups of rankdeck."""


KEPT_DAYS = 60  # days without a launch after which a package of another version is removed from this machine


@cache
def library_name() -> str:
    """Returns a name that changes with the files of the package. It needs their state only: to read them takes ten times as long."""
    state = []
    for folder in (LIBRARY, NODE, NODE.parent / "linux"):
        for parent, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if name not in (APP, "__pycache__"))
            for name in sorted(files):
                found = os.stat(path := os.path.join(parent, name))
                state.append((path, found.st_ino, found.st_size, found.st_ctime_ns))  # times of content may be made up
    return hashlib.sha256(repr(state).encode(errors="surrogateescape")).hexdigest()[:16]


def unpacked() -> str:
    """Returns the folder of the package on this machine, which all runs share. Unpacks it if there is none.

    Raises:
        OSError: it can't be written.
        RuntimeError: another user could change it.
    """
    base = Path(private_folder(str(state_folder() / "library")))
    folder = base / library_name()
    if folder.exists():
        os.utime(folder)
        return str(folder)
    for entry in base.iterdir():
        with contextlib.suppress(OSError):
            if entry.stat().st_mtime < time.time() - KEPT_DAYS * 86400:
                shutil.rmtree(entry)
    import tarfile
    import tempfile

    with tempfile.TemporaryDirectory(dir=base) as partial:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(pack()))) as archive:
            archive.extractall(f"{partial}/library", filter="data")
        try:
            os.rename(f"{partial}/library", folder)
        except OSError:  # another launch was faster
            if not folder.exists():
                raise
    return str(folder)


@cache
def pack() -> str:
    """Packs the package. It becomes `python/rankdeck/`, and ranks search for modules in `python`. Returns base64."""
    import tarfile  # takes time that most launches do not need

    names = sorted(one.relative_to(LIBRARY) for one in LIBRARY.rglob("*") if one.is_file() and one.suffix in SUFFIXES)
    members = [(Path("python", LIBRARY.name, name), LIBRARY / name) for name in names if name.parts[0] != APP]
    members += [(Path(program.name), program) for program in _PROGRAMS]
    texts = [(Path("python", _DISTRIBUTION, name), text.encode()) for name, text in _METADATA.items()]
    texts.append((Path("probe.py"), bundle.program("probe", "serve:main")))
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, data in [*((name, path.read_bytes()) for name, path in members), *texts]:
            member = tarfile.TarInfo(str(name))
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    return base64.b64encode(raw.getvalue()).decode()
