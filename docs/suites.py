"""Writes docs/suites.md from what `make suites` has found: how many of torch's tests ran, failed and skipped on each backend."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/suites.md"
CONTROL = ROOT / "tests/data/gloo_control.json"
LISTS = ROOT / "tests/data/torch_suite.toml"

HEAD = """# torch's own tests

`make suites` runs the tests of process groups in torch's wheel, with their assertions about the profiler, in one job on each backend, and `tests/peers/ground.py`: functional
collectives, DTensor, tensor parallelism, FSDP2, checkpoints, hooks of DDP, ZeRO, pipelines, meshes, Join, whose tests the wheel does not bring. `docs/suites.py` writes this page.
gloo is the control, and runs only the tests that torch has for it; on mpi and ucc, a test of another backend runs as if this one was gloo or MPI.

| backend | ranks | torch's tests: ran | failed | skipped | tests of ours: ran | failed |
|---|---|---|---|---|---|---|
"""


def row(file: Path) -> str:
    """The row of one job. Its results are those of each rank: a test fails if it fails on one."""
    everybody: list[dict[str, str]] = json.loads(file.read_text())
    library, _, ranks = file.stem.rpartition("-")
    cells = [library, ranks]
    for is_ours in (False, True):
        names = [name for name in everybody[0] if name.startswith("test_ground_") == is_ours]
        said = [[verdicts[name] for verdicts in everybody] for name in names]
        skipped = sum(any(text.startswith("skipped: ") for text in texts) for texts in said)
        failed = sum(any(text != "ok" and not text.startswith("skipped: ") for text in texts) for texts in said)
        cells += [f"{len(said) - skipped}", f"{failed}", *([] if is_ours else [f"{skipped}"])]
    return f"| {' | '.join(cells)} |\n"


def reasons() -> str:
    """Why tests do not run on mpi and ucc, with the number of them."""
    lists = tomllib.loads(LISTS.read_text())
    groups = {"Skipped": lists["skipped"], "Not started": lists["left_out"]}
    groups["Not started"]["with two ranks: the group of the test is ranks 1 and 2"] = lists["needs_three_ranks"]
    return "".join(
        f"\n{title}, by reason:\n\n" + "".join(f"- {len(names.split())}: {why}\n" for why, names in group.items())
        for title, group in groups.items()
    )


def control() -> str:
    """What gloo makes of the calls that are an error over mpi and ucc."""
    found: dict[str, list[str]] = json.loads(CONTROL.read_text())
    worst = ["a signal", "a hang", "no error on any rank", "an error"]
    counts = dict.fromkeys(worst, 0)
    for texts in found.values():
        said = " ".join(
            "a signal" if one.startswith("signal") else "a hang" if one == "hangs" else one for one in texts
        )
        silent = all(one in ("", "no error") for one in texts)
        counts["no error on any rank" if silent else next((one for one in worst[:2] if one in said), "an error")] += 1
    return (
        f"\n## Wrong calls\n\n{len(found)} wrong calls with two ranks (`tests/data/tables/c10d/wrong_calls.toml`): over mpi (Open MPI, MPICH) and ucc, each ends in an error that "
        "names the operation or the\nrank at fault. gloo, the control (`tests/data/gloo_control.json`), gave: "
        + ", ".join(f"{kind} {count} times" for kind, count in counts.items())
        + ". Some of them\nare allowed over gloo.\n"
    )


def main() -> None:
    """Writes the page."""
    files = sorted((ROOT / "build/suites").glob("*.json"))
    if not files:
        sys.exit("run `make suites` first")
    PAGE.write_text(HEAD + "".join(map(row, files)) + reasons() + control())


if __name__ == "__main__":
    main()
