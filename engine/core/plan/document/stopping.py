"""Reads `metrics.stop_when`: `METRIC > LIMIT after STEP`, such as `val_loss > best * 1.5 after 200`. Pure."""

import math
import re
from typing import Literal, NamedTuple

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RULE = re.compile(
    rf"\s*(?P<metric>[^\s<>=]+)\s*(?P<sign>[<>])\s*(?:(?P<limit>{_NUMBER})|(?P<best>(?:sweep\.)?best)"
    rf"(?:\s*(?P<change>[-+*/])\s*(?P<by>{_NUMBER}))?)(?:\s+after\s+(?P<after>\d{{1,15}}))?\s*",
    re.ASCII,
)


class StopRule(NamedTuple):
    """When a run ends early. `toward`: the direction of the metric; None: with the sign `>` its lowest value is the best, with `<` the highest.

    `best`: `best` is that of this run, `sweep.best` that of all runs of its sweep; empty: `number` is the limit itself. `after`: values up to this
    step don't count.
    """

    metric: str
    sign: Literal["<", ">"]
    number: float
    best: Literal["", "best", "sweep.best"] = ""
    change: str = "+"
    after: int = -1
    toward: Literal["min", "max"] | None = None

    @property
    def is_lowest_best(self) -> bool:
        return self.sign == ">" if self.toward is None else self.toward == "min"

    def limit(self, best: float) -> float | None:
        """The limit, where the best value is `best`. None: there is none, because a share of a value that is not above zero means nothing."""
        if not self.best:
            return self.number
        if self.change in "*/":
            return (best * self.number if self.change == "*" else best / self.number) if best > 0 else None
        return best + (self.number if self.change == "+" else -self.number)


def stop_rule(text: str) -> StopRule:
    """The rule of a text. Raises ValueError: it is none, or its limit is no number."""
    if (found := _RULE.fullmatch(text)) is None:
        raise ValueError("is not METRIC > LIMIT or METRIC < LIMIT")
    best, change = found["best"] or "", found["change"] or "+"
    number = float(found["limit"] or found["by"] or 0)
    if not math.isfinite(number) or (change == "/" and number == 0):
        raise ValueError("has a limit that is no number")
    return StopRule(found["metric"], found["sign"], number, best, change, int(found["after"] or -1))  # type: ignore[arg-type]
