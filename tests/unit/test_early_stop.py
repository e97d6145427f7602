"""`metrics.stop_when`: which texts are rules, and when a rule ends a run."""

import math

import pytest

from engine.core.metrics.series import Series
from engine.core.metrics.stopping import best_of, why_stop
from engine.core.plan.document.stopping import StopRule, stop_rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("loss > 10", StopRule("loss", ">", 10.0)),
        (" val/acc@1<.5 after 200 ", StopRule("val/acc@1", "<", 0.5, after=200)),
        ("val_loss > best * 1.5 after 0", StopRule("val_loss", ">", 1.5, "best", "*", 0)),
        ("eval loss > best", None),
        ("acc < sweep.best - 2e-2", StopRule("acc", "<", 0.02, "sweep.best", "-")),
        ("acc<sweep.best", StopRule("acc", "<", 0.0, "sweep.best")),
        ("loss > best / 0", None),
        ("loss > 1e999", None),
        ("loss >= 3", None),
        ("loss > worst", None),
        ("loss > 3 * best", None),
        ("__import__('os')", None),
        ("loss > 3 after -1", None),
    ],
)
def test_a_rule_is_read_or_refused(text: str, rule: StopRule | None) -> None:
    if rule is not None:
        assert stop_rule(text) == rule
        return
    with pytest.raises(ValueError, match=r"is not METRIC|no number"):
        stop_rule(text)


def curve(*values: float, rank: int = 0, at: float = 100.0) -> Series:
    """A curve with a value every ten steps and ten seconds."""
    made = Series(rank, "m")
    for place, value in enumerate(values, 1):
        made.append(at + 10 * place, 10 * place, value)
    return made


@pytest.mark.parametrize(
    ("text", "curves", "others", "why"),
    [
        ("m > 3", [curve(1, 4)], [], "m 4 > 3 at step 20"),
        ("m > 3", [curve(4, 1)], [], ""),
        ("m > 3", [], [], ""),
        ("m > 3 after 20", [curve(1, 4)], [], ""),
        ("m > 3", [curve(1, math.nan)], [], ""),
        ("m > 3", [curve(1, 4), curve(1, 3, rank=1)], [], "m 3.5 > 3 at step 20"),
        ("m > 3", [curve(1, 4), curve(1, 1, rank=1)], [], ""),
        ("m > best * 1.5", [curve(2, 1, 1.6)], [], "m 1.6 > best 1 * 1.5 at step 30"),
        ("m > best * 1.5", [curve(2, 1, 1.4)], [], ""),
        ("m > best * 1.5", [curve(-2, -1)], [], ""),
        ("m > best + 0.5", [curve(-2, -1)], [], "m -1 > best -2 + 0.5 at step 20"),
        ("m < best - 2", [curve(2, 9, 6)], [], "m 6 < best 9 - 2 at step 30"),
        ("m > sweep.best * 2", [curve(2, 3)], [5.0, 1.0], "m 3 > sweep.best 1 * 2 at step 20"),
        ("m < sweep.best", [curve(2, 3)], [5.0, 1.0], "m 3 < sweep.best 5 at step 20"),
        ("m > sweep.best * 2", [curve(2, 3)], [], ""),
        ("m > best", [curve(1, 4, at=-1000.0)], [], ""),
    ],
)
def test_a_rule_ends_a_run_when_the_newest_value_is_beyond_its_limit(
    text: str, curves: list[Series], others: list[float], why: str
) -> None:
    found = why_stop(stop_rule(text), curves, 50.0, others)
    assert found == (why and f"{why} (metrics.stop_when)")


def test_the_direction_of_a_metric_says_which_value_is_the_best() -> None:
    rule = stop_rule("m > best + 1")._replace(toward="max")
    assert why_stop(rule, [curve(1, 4, 3)], 0.0, []) == ""
    assert why_stop(rule, [curve(1, 4, 6)], 0.0, [2.0]) == ""
    assert best_of(rule, [curve(1, 4, 3)]) == 4.0
