"""Tells when the curve of a metric ends a run: see `engine.core.plan.document.stopping`. Pure."""

import math
from collections.abc import Iterable, Sequence

from engine.core.metrics.series import Series
from engine.core.plan.document.stopping import StopRule


def best_of(rule: StopRule, curves: Sequence[Series]) -> float | None:
    """The best value of a rule's metric: the mean over ranks of the best of each rank. None: it has no finite value."""
    ends = [end for one in curves if math.isfinite(end := one.low if rule.is_lowest_best else one.high)]
    return sum(ends) / len(ends) if ends else None


def why_stop(rule: StopRule, curves: Sequence[Series], since: float, others: Iterable[float]) -> str:
    """Why a rule ends a run; empty: it does not. The newest value is the mean over ranks.

    Args:
        curves: the metric of each rank that has it.
        since: seconds since the epoch; a newest value that is older does not count.
        others: the best value in each other run of the sweep.
    """
    newest = [one.recent[-1] for one in curves if one.recent]
    own = best_of(rule, curves)
    is_new = all(at >= since and math.isfinite(value) and (step or 0) > rule.after for at, step, value in newest)
    if own is None or not is_new:
        return ""
    best = (min if rule.is_lowest_best else max)([own, *others])
    value, limit = sum(value for *_, value in newest) / len(newest), rule.limit(best)
    if limit is None or not (value > limit if rule.sign == ">" else value < limit):
        return ""
    step = max((step for _, step, _ in newest if step is not None), default=None)
    change = f" {rule.change} {rule.number:g}" if rule.number else ""
    words = f"{rule.best} {best:.6g}{change}" if rule.best else f"{limit:g}"
    place = "" if step is None else f" at step {step}"
    return f"{rule.metric} {value:.6g} {rule.sign} {words}{place} (metrics.stop_when)"
