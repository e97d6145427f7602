"""Which torch ranks would import, read from its files: importing it takes seconds. Standard library only; Python 3.8 and later."""

from __future__ import annotations

import os
import re
import sys
from importlib import machinery

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Optional

VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)", re.MULTILINE)
CUDA = re.compile(r"^cuda\b[^=\n]*=\s*(?:None|['\"]([\d.]+)['\"])", re.MULTILINE)


def torch_versions(path: Iterable[str]) -> tuple[str, Optional[str]]:  # noqa: UP045 - Python 3.8
    """Returns the version of a torch, and that of its CUDA, empty for a build without CUDA; empty and None: unknown. `path`: the module
    search path on which it is looked for."""
    try:
        found = machinery.PathFinder.find_spec("torch", list(path))
        assert found is not None
        with open(os.path.join(os.path.dirname(found.origin or ""), "version.py")) as file:
            said = file.read(1 << 16)
    except Exception:  # noqa: BLE001 - a damaged installation may raise anything
        return "", None
    version, cuda = VERSION.search(said), CUDA.search(said)
    return version[1] if version else "", None if cuda is None else cuda[1] or ""


def search_path() -> list[str]:
    """Returns the folders of packages of this Python in their order. It may run without them (`-S`), so they are found by its place."""
    folder, name = os.path.dirname(os.path.dirname(sys.executable)), "python{}.{}".format(*sys.version_info[:2])
    user = os.environ.get("PYTHONUSERBASE") or os.path.expanduser("~/.local")
    places = [folder] if os.path.exists(os.path.join(folder, "pyvenv.cfg")) else [user, folder]
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return given + [os.path.join(place, "lib", name, "site-packages") for place in places]
