"""The contract of elastic states: whatever the script, and wherever a rank is killed, the final state is on all ranks, bit by bit, that of
a training which nothing disturbed; or the ranks refuse to go on, and name what is at fault."""

import json
import re
import signal
from pathlib import Path
from typing import Any, NamedTuple

from rankdeck.elastic._replacement import MAKES_WAY
from tests.rank.elastic_ranks import Ranks
from tests.support import entries, wait_until

WORLD, STEPS = 3, 7
PHASES = ("init", "forward", "backward", "collective", "step", "counted", "last")  # in which each script is killed
LONGEST = 120.0  # seconds that a case may take on an idle machine

PROGRAM = str(Path(__file__).with_name("elastic_program.py"))

SCRIPTS: dict[str, dict[str, Any]] = entries("rank/elastic_contract", "scripts")
"""What the options of a script are."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = entries("rank/elastic_contract", "refused")
"""Scripts which can't be right after each kill, and what the ranks say then: they are right, or refuse, and never go on with a wrong state."""

MORE_PHASES = entries("rank/elastic_contract", "more_phases")
"""By the option that makes them."""


class Case(NamedTuple):
    """A kill of a script."""

    script: str
    phase: str
    step: int
    victim: int


class Verdict(NamedTuple):
    """What became of it."""

    word: str  # right, refused, wrong
    why: str


def options_of(script: str) -> dict[str, Any]:
    """The options of a script by its name."""
    return SCRIPTS[script] if script in SCRIPTS else REFUSED[script][0]


def cases(script: str) -> list[Case]:
    """All kills of a script: each phase, early and late, of rank 0 and of another."""
    options = options_of(script)
    phases = (*PHASES, *(phase for name, more in MORE_PHASES.items() if options.get(name) for phase in more))
    found = [Case(script, phase, step, victim) for phase in phases for step in (1, 4, 6) for victim in (0, 1)]
    return [one for one in found if one.step == 1 or one.phase not in ("init", "last")]


class Bench:
    """Runs cases in a folder, and knows what undisturbed trainings end with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._right: dict[str, list[str]] = {}
        self._undisturbed: dict[str, list[str]] = {}
        self._count = 0

    def run(self, case: Case) -> Verdict:
        """Kills as the case says, and compares what each rank says at its end."""
        if case.script not in self._right:
            said, _ = self._train(case.script, "never 0 0", -1)
            self._undisturbed[case.script] = said
            self._right[case.script] = [self._result(text) for text in said]
        right = self._right[case.script]
        expected = REFUSED[case.script][1] if case.script in REFUSED else "StateError"
        if not any(right) and all(expected in text for text in self._undisturbed[case.script]):
            return Verdict("refused", "at the start")
        if not all(right) or len({text.split()[1] for text in right}) > 1:
            return Verdict("wrong", "without a kill: " + "\n---\n".join(self._undisturbed[case.script]))
        step = {"init": 0, "last": STEPS}.get(case.phase, case.step)
        said, statuses = self._train(case.script, f"{case.phase} {step} {case.victim}", case.victim)
        results = [self._result(text) for text in said]
        if results == right and not any(statuses):
            return Verdict("right", "")
        if all(statuses) and any(expected in text for text in said):
            return Verdict("refused", re.findall(r"Error: (.*)", "\n".join(said))[-1])
        return Verdict("wrong", f"{results} instead of {right}, status {statuses}\n" + "\n---\n".join(said))

    @staticmethod
    def _result(text: str) -> str:
        found = re.search(r"^result .*$", text, re.MULTILINE)
        return found.group() if found else ""

    def _train(self, script: str, kill: str, victim: int) -> tuple[list[str], list[int]]:
        """Returns what the last process of each rank said, and its exit status."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        ranks = Ranks(folder, [PROGRAM, json.dumps(options_of(script)), kill], WORLD)
        generations = [0] * WORLD
        try:
            for rank in range(WORLD):
                ranks.start(rank)
            if victim >= 0 and ranks.end(victim) == -signal.SIGKILL:
                ranks.tell("lost", 0)
                ranks.start(victim, 1)
                generations[victim] = 1
                ranks.tell("generation", 1)
            statuses: dict[int, int] = {}

            def look() -> bool:
                for rank in range(WORLD):
                    if (status := ranks.poll(rank, generations[rank])) == MAKES_WAY and not generations[rank]:
                        generations[rank] = 1
                        ranks.start(rank, 1)
                    elif status is not None:
                        statuses[rank] = status
                return len(statuses) == WORLD

            wait_until(look, LONGEST, f"the ends of {script!r}, {kill}")
            return [ranks.said(rank, generations[rank]) for rank in range(WORLD)], [
                statuses[rank] for rank in range(WORLD)
            ]
        finally:
            ranks.close()
