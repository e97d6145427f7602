"""NVIDIA's management library without GPUs: a real shared object, whose GPUs a test puts into a file."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import PATIENCE

SOURCE = Path(__file__).with_suffix(".c")
GIB = 1 << 30


def gpu(
    index: int,
    *,
    model: str = "H100",
    utilisation: int = 97,
    used: int = 61 * GIB,
    total: int = 80 * GIB,
    processes: int = 0,
) -> str:
    """A GPU as the library reads it."""
    return f"GPU-{index:04} {model} {utilisation} {used} {total} {processes}"


class FakeNvml:
    """The library, in a folder of its own. Skips where there is no compiler. `folder`: is made."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler, cc")
        folder.mkdir()
        self._gpus = folder / "gpus"
        library = folder / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True, timeout=PATIENCE)
        self.environment = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(self._gpus)}
        """In which it is the one that is found."""

    def show(self, *gpus: str) -> None:
        """From now on these are there, in the order of the PCI bus."""
        partial = self._gpus.with_suffix(".partial")
        partial.write_text("".join(f"{one}\n" for one in gpus))
        partial.replace(self._gpus)
