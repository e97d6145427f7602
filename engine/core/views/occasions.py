"""When a user is told about a run: the changes of its state that need them, or end it."""

from typing import NamedTuple

from engine.core.run.state import ENDED_WORDS, ListedWord
from engine.core.settings import Occasion
from engine.core.views.view import RunSummary, RunView


class Condition(NamedTuple):
    """Facts that decide whether to notify the user. `reason`: for people, raw."""

    state: ListedWord = "starting"
    is_stalled: bool = False
    reason: str = ""


def condition(run: RunSummary | RunView) -> Condition:
    """How a run stands."""
    if isinstance(run, RunSummary):
        return Condition(run.state, run.stalled, run.reason)
    return Condition(run.state, run.stall is not None, reason_of(run))


def reason_of(run: RunView) -> str:
    """Why a run is in its state, for people: what failed, and the checkpoints that it has left."""
    if run.failure is None or run.state == "succeeded":
        return run.doing
    return "; ".join(filter(None, (run.failure.headline, run.saved.words if run.saved is not None else "")))


def occasion_of(before: Condition, now: Condition) -> Occasion | None:
    """The news about a run between two looks; None: nothing that its user needs to know."""
    if now.state != before.state and now.state in ("failed", "holding"):
        return "failure"
    if now.state in ENDED_WORDS and before.state not in ENDED_WORDS:
        return "end"
    if now.is_stalled and not before.is_stalled:
        return "stall"
    return None


def telling(occasion: Occasion, now: Condition) -> str:
    """The message for the user, raw."""
    words = "ranks hang" if occasion == "stall" else "waits: a rank failed" if now.state == "holding" else now.state
    reason = now.reason if occasion != "stall" and now.state != "succeeded" else ""
    return f"{words}: {reason}" if reason else words
