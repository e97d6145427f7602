"""Which run of a sweep is the best: by which metric, in which direction, and in which order."""

import statistics
from typing import Any

from msgspec.structs import replace

from engine.core.metrics.direction import best_values, direction, main_metric
from engine.core.metrics.series import Series, SeriesDump
from engine.core.plan.plan import Swept
from engine.core.views.groups import Spread, groups, ranked
from engine.core.views.history import HistoryEntry, SortKey, filter_history, sort_history, sweep_keys
from engine.core.views.view import RunSummary
from tests.support import from_table


@from_table
def test_the_name_of_a_metric_says_which_value_is_the_best(metric: str, expected: str | None) -> None:
    assert direction(metric) == expected


def curve(rank: int, key: str, *values: float) -> SeriesDump:
    series = Series(rank, key)
    for step, value in enumerate(values):
        series.append(float(step), step, value)
    return series.dump()


def test_the_best_is_the_mean_of_the_best_of_each_rank_without_values_that_are_not_finite() -> None:
    dumps = [curve(0, "loss", 3.0, 1.0, float("nan"), 2.0), curve(1, "loss", 5.0, 4.0), curve(0, "acc", 0.1, 0.3, 0.2)]
    dumps += [curve(0, "lr", 1.0), curve(0, "val_loss", float("nan"))]
    assert best_values(dumps) == {"acc": 0.3, "loss": 2.5}
    assert best_values([curve(0, "elbo", 1.0, 3.0), *dumps[:1]], "max") == {"elbo": 3.0, "loss": 1.0}


def test_runs_are_ranked_by_what_is_measured_on_other_data_than_that_of_the_training() -> None:
    assert main_metric([{"loss": 1.0, "acc": 0.1}, {"val_acc": 0.2}]) == "val_acc"
    assert main_metric([{"val_acc": 0.2, "val_loss": 1.0}]) == "val_loss"
    assert main_metric([{"acc": 0.1, "loss": 1.0}]) == "loss"
    assert main_metric([{"elbo": 1.0, "acc": 0.1}]) == "acc"
    assert main_metric([{}]) == ""


def entry(run: str, best: dict[str, float], sweep: str = "s", **values: Any) -> HistoryEntry:
    swept = Swept(sweep=sweep, values=values, number=1, runs=3)
    summary = RunSummary(
        run=run, name="job", state="succeeded", world_size=1, backend="gloo", launched_at=0.0, ended_at=1.0, attempt=0,
        step=1, steps=1, loss=None, reason="", reachable=True, host="here", swept=swept,
    )  # fmt: skip
    return HistoryEntry(summary=summary, seconds=1.0, metrics={}, changes=None, size=None, best=best)


def test_runs_of_a_sweep_are_sorted_by_their_best_value_and_by_settings_as_numbers() -> None:
    runs = [entry("a", {"acc": 0.2}, lr="1e-3"), entry("b", {}, lr="10"), entry("c", {"acc": 0.9}, lr="2")]
    assert sweep_keys(runs) == [SortKey("value", "lr"), SortKey("best", "acc")]
    assert [one.summary.run for one in sort_history(runs, SortKey("best", "acc"))] == ["c", "a", "b"]
    assert [one.summary.run for one in sort_history(runs, SortKey("best", "acc"), reverse=True)] == ["a", "c", "b"]
    assert [one.summary.run for one in sort_history(runs, SortKey("value", "lr"))] == ["a", "c", "b"]
    texts = [*runs, entry("d", {}, lr="auto")]
    assert [one.summary.run for one in sort_history(texts, SortKey("value", "lr"))] == ["b", "a", "c", "d"]
    odd = [replace(entry(run, {"elbo": value}), toward="max") for run, value in (("a", 1.0), ("b", 2.0))]
    assert [one.summary.run for one in sort_history(odd, sweep_keys([replace(runs[0], best={"elbo": 0.0})])[-1])] == [
        "b",
        "a",
    ]
    other = entry("e", {}, sweep="other", wd="1")
    assert sweep_keys([*runs, other]) == []
    assert filter_history([*runs, other], ["other"]) == [other]


def test_runs_that_differ_in_the_seed_only_are_one_group_with_mean_and_deviation() -> None:
    runs = [
        entry("a", {"val_loss": 4.0, "acc": 1.0}, lr="1", seed="1"),
        entry("b", {"val_loss": 3.0, "acc": 5.0}, lr="2", seed="1"),
        entry("c", {"val_loss": 1.0, "acc": 3.0}, lr="1", seed="2"),
        entry("d", {"acc": 7.0}, lr="2", seed="2"),
    ]
    found = groups(runs, ["lr"])
    assert [(one.values, one.runs, one.last) for one in found] == [({"lr": "1"}, 2, {}), ({"lr": "2"}, 2, {})]
    assert found[0].best["val_loss"] == Spread(2.5, statistics.stdev([4.0, 1.0]), 2)
    assert found[1].best["val_loss"] == Spread(3.0, None, 1)
    assert ranked(found, "val_loss", "min", reverse=False) == found
    assert ranked(found, "acc", "max", reverse=False) == found[::-1]
    assert ranked(found, "wer", None, reverse=False) == found
