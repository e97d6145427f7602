"""Tells by the name of a metric whether its lowest or its highest value is the best. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from engine.core.metrics.lines.patterns import W
from engine.core.metrics.series import SeriesDump

LOWEST = set("loss losses error errors err perplexity ppl wer cer mse rmse mae nll bpb bpc fid regret".split())
HIGHEST = set(
    "acc accuracy f1 auc auroc map ap precision recall reward return bleu rouge iou miou dice psnr ssim score".split()
)


Direction = Literal["min", "max"]


def direction(metric: str, otherwise: Direction | None = None) -> Direction | None:
    """`min` for `val_loss`, `max` for `test/acc@1`. `otherwise`: where the name does not say it, the profile's `metrics.best`."""
    words = _words(metric)
    found = {kind for kind, known in (("min", LOWEST), ("max", HIGHEST)) if words & known}
    return ("max" if "max" in found else "min") if len(found) == 1 else otherwise


def best_values(dumps: Iterable[SeriesDump], otherwise: Direction | None = None) -> dict[str, float]:
    """The best value of each metric that has a direction, see there: the mean over ranks of the best of each rank."""
    found: dict[str, list[float]] = {}
    for dump in dumps:
        kind = direction(dump.key, otherwise)
        ends = [one.low if kind == "min" else one.high for one in dump.buckets]
        if kind is not None and (values := [value for value in ends if value is not None]):
            found.setdefault(dump.key, []).append(min(values) if kind == "min" else max(values))
    return {key: sum(values) / len(values) for key, values in sorted(found.items())}


def main_metric(best: Iterable[Mapping[str, float]]) -> str:
    """The metric by which runs are ranked: of a validation before that of the training, a loss before others, a name that says its direction before
    others. Empty: there is none."""

    def place(name: str) -> tuple[bool, bool, bool, str]:
        words = _words(name)
        return (not words & W.held_out, "loss" not in words, direction(name) is None, name)

    return min({name for one in best for name in one}, key=place, default="")


def _words(metric: str) -> set[str]:
    parts = [part for part in re.split(r"[^a-z0-9]+", metric.lower()) if part]
    return {*parts, *(part.rstrip("0123456789") for part in parts)}
