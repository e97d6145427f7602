"""Kills a rank in each phase of each script of the contract of elastic states, and compares the final states bit by bit.

`--sample N`: N kills of each script instead of all. Prints a table of the scripts: how many kills ended with the right state, and how many
were refused, with what the ranks said; and, in full, what was wrong. The exit status is 1 if something was wrong, or a rank hung.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.rank.elastic_contract import REFUSED, SCRIPTS, Bench, Verdict, cases  # noqa: E402 - found by the path above


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("scripts", nargs="*", help="left out: all")
    options = parser.parse_args()
    dice, is_wrong = random.Random(options.seed), False
    print("| script | kills | right | refused | what the ranks said |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="states") as folder:
        bench = Bench(Path(folder))
        for script in options.scripts or [*SCRIPTS, *REFUSED]:
            kills = cases(script)
            kills = dice.sample(kills, min(options.sample, len(kills))) if options.sample else kills
            words: Counter[str] = Counter()
            said: dict[str, None] = {}
            for kill in kills:
                try:
                    verdict = bench.run(kill)
                except AssertionError as error:  # a rank has not ended
                    verdict = Verdict("wrong", str(error))
                words[verdict.word] += 1
                if verdict.word == "refused":
                    said[verdict.why] = None
                elif verdict.word == "wrong":
                    is_wrong = True
                    print(f"{kill}: {verdict.why}", file=sys.stderr, flush=True)
            reasons = next(iter(said), "")
            print(f"| {script} | {len(kills)} | {words['right']} | {words['refused']} | {reasons} |", flush=True)
    raise SystemExit(is_wrong)


if __name__ == "__main__":
    main()
