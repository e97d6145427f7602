"""Launches every shipped profile for a few steps: `python profiles.py`. What a profile needs and a machine lacks is said in one sentence.

The MPI profile for this machine must run: `make` has installed an MPI.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from recipes import FEW

ROOT = Path(__file__).resolve().parents[1]
MAY_LACK = ("nccl", "ucc")  # backends whose devices or libraries no package of ours brings

SECONDS = 600
MISSING = 3  # exit status of a launch that can't begin


def rankdeck(*words: str, home: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of this checkout."""
    return subprocess.run(
        [sys.executable, ROOT / "rankdeck_command.py", *words],
        env={**os.environ, "RANKDECK_HOME": home},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def few_words(recipe: dict[str, Any]) -> list[str]:
    """Arguments with which a recipe takes seconds."""
    names = {one["name"].replace("-", "_") for one in recipe["arguments"]}
    has_presets = any(one["presets"] for one in recipe["arguments"])
    words = ["--preset", "small"] if has_presets else []
    for name, value in FEW.items():
        words += [f"--{name.replace('_', '-')}", value] if name in names and name != "start_method" else []
    return words


def main() -> int:
    """Launches all whose nodes are this machine. Returns 1 if one fails otherwise than it may."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="profiles") as home:
        recipes = {one["name"]: one for one in json.loads(rankdeck("recipes", "--json", home=home).stdout)}
        for path in sorted(ROOT.glob("profiles/*.toml")):
            profile = tomllib.loads(path.read_text())
            backend = profile.get("backend", {}).get("name", "gloo")
            if not str(profile.get("layout", {}).get("nodes", "localhost")).startswith("localhost"):
                continue  # its nodes are examples
            words = few_words(recipes[profile["recipe"]["name"]])
            done = rankdeck("launch", "--cold", path.stem, "--set", f"recipe.args={json.dumps(words)}", home=home)
            may_lack = backend in MAY_LACK or "slurm" in profile.get("layout", {})
            is_missing = done.returncode == MISSING and may_lack and "Traceback" not in done.stderr
            print(f"{path.stem}: {'status ' + str(done.returncode) if done.returncode else 'ran'}", flush=True)  # noqa: T201
            if done.returncode and not is_missing:
                failed.append(path.stem)
                print(done.stdout, done.stderr, sep="\n")  # noqa: T201
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
