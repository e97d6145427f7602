"""Which installed modules a script uses, as rank 0 tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import PATIENCE, ROOT

SCRIPT = """
import sys, weakref
from rankdeck._imports import installed_modules

class Proxy:
    @property
    def __class__(self):
        raise RuntimeError("not yet")

class Big:
    pass

proxy = Proxy()

def main():
    import msgspec
    from msgspec.json import Encoder
    big = Big()
    seen = weakref.ref(big)
    print(*installed_modules())
    del big
    print(seen())

main()
"""


def test_modules_that_a_script_imports_in_a_function_are_named_and_its_objects_are_not_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    named, kept = done.stdout.splitlines()
    assert named.startswith("msgspec")
    assert kept == "None"
