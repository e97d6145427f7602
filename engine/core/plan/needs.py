"""The Python and the torch that ranks need, and the next step if a node has older ones."""

import re
from typing import NamedTuple

from engine.core.plan.plan import LaunchPlan

OLDEST_PYTHON, OLDEST_TORCH = "3.9", "2.1"  # the oldest ones that ranks run with; see `make versions`


class Lack(NamedTuple):
    """Something that ranks need and a node does not have: the fact, and the next step."""

    fact: str
    hint: str


def lack_of(plan: LaunchPlan, *, python: str = "", torch: str = "") -> Lack | None:
    """The version that is too old for the ranks of a plan; None: there is none, or the program is not Python. `python`, `torch`: the
    versions that ranks would have on a node; empty: unknown."""
    if plan.program.interpreter is not None:
        return None
    if _is_older(python, OLDEST_PYTHON):
        hint = f"set launch.python to a Python {OLDEST_PYTHON} or newer that has torch"
        return Lack(f"Python {python} is too old: ranks need {OLDEST_PYTHON} or newer", hint)
    needs = {"ranks need": OLDEST_TORCH, f"the recipe {plan.program.target} needs": plan.program.torch}
    if not plan.fallback:  # else the next backend is tried
        needs[f"{plan.backend.name} needs"] = plan.backend.torch
    who, least = max(needs.items(), key=lambda need: _numbers(need[1]))
    if not _is_older(torch, least):
        return None
    hint = f"set launch.python to a Python with torch {least} or newer"
    return Lack(f"torch {torch} is too old: {who} {least} or newer", hint)


def _is_older(version: str, least: str) -> bool:
    return bool(version) and _numbers(version) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    """The first numbers of `2.10.0+cu128`; none of an empty text."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:2]))
