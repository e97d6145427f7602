"""Records what gloo, the control, makes of the wrong calls: `python -m tests.c10d.gloo_control` writes `tests/data/gloo_control.json`, in about
15 minutes. `docs/suites.py` counts them."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import ROOT

RANKS = 2
RECORD = ROOT / "tests/data/gloo_control.json"
VARYING = re.compile(r"\[[\d.:]+\](:\d+)?|0x[0-9a-f]+|/\S+/")  # addresses and paths
LONGEST = 120  # characters of an error


def record(folder: Path) -> None:
    """Writes what each rank has found: by call, a text for each rank."""
    everybody = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    found = {name: [VARYING.sub("…", one[name])[:LONGEST] for one in everybody] for name in everybody[0]}
    RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    """Runs the ranks."""
    with tempfile.TemporaryDirectory() as name:
        argv = [sys.executable, str(ROOT / "tests/c10d/wrong_calls.py"), "gloo", name]
        shared = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": str(RANKS)}
        ranks = [subprocess.Popen(argv, env={**shared, "RANK": str(rank)}) for rank in range(RANKS)]
        assert [rank.wait() for rank in ranks] == [0] * RANKS
        record(Path(name))


if __name__ == "__main__":
    main()
