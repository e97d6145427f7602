"""The history of runs: what differs between settings, order and filter."""

from typing import Any

from engine.core.plan.document.reading import profile_from_data
from engine.core.plan.secrets import HIDDEN
from engine.core.plan.settings import Change, arguments_of, changes, settings_of
from engine.core.views.history import HistoryEntry, filter_history, metric_names, sort_history, sort_key
from engine.core.views.view import RunNote, RunSummary
from tests.support import from_table


def settings(args: list[str], **sections: Any) -> Any:
    data = {"schema": 1, "name": "job", "layout": {"nodes": "localhost:2"}, **sections}
    return settings_of(profile_from_data({**data, "recipe": {"script": "train.py", "args": args}}, "job.toml"))


@from_table
def test_arguments_are_found_by_their_option(words: list[str], found: dict[str, str]):
    assert arguments_of(words) == found


def test_only_what_differs_is_named():
    before = settings(["--lr", "1e-3", "--amp"], env={"A": "1"})
    after = settings(["--lr=2e-3", "--steps", "10"], env={"A": "1"}, launch={"warm": False})
    assert [change.words for change in changes(before, after)] == [
        "--lr 2e-3", "--steps 10", "launch.warm=false", "without --amp"]  # fmt: skip
    assert changes(before, before) == []


def test_a_secret_that_differs_is_named_but_not_shown():
    before, after = settings(["--api-key", "a"], env={"TOKEN": "x"}), settings(["--api-key", "b"], env={"TOKEN": "y"})
    found = changes(before, after)
    assert Change("--api-key", HIDDEN, HIDDEN) in found
    assert Change("env.TOKEN", HIDDEN, HIDDEN) in found
    assert changes(settings(["--max-tokens", "5"]), settings(["--max-tokens", "6"])) == [
        Change("--max-tokens", "5", "6")
    ]


def entry(run: str, **facts: Any) -> HistoryEntry:
    known = {"name": "job", "state": "succeeded", "world_size": 2, "backend": "gloo", "launched_at": 1.0, "ended_at": 2.0,
             "attempt": 0, "step": None, "steps": None, "loss": None, "reason": "", "reachable": True, "host": "here"}  # fmt: skip
    own = {name: facts.pop(name) for name in list(facts) if name in known}
    rest = {"seconds": 1.0, "metrics": {}, "changes": None, "size": 0, **facts}
    return HistoryEntry(summary=RunSummary(run=run, **{**known, **own}), **rest)


def names(entries: list[HistoryEntry]) -> list[str]:
    return [one.summary.run for one in entries]


def test_runs_without_a_value_come_last_in_either_direction():
    runs = [entry("a"), entry("b", metrics={"accuracy": 0.9}), entry("c", metrics={"accuracy": 0.5})]
    assert names(sort_history(runs, sort_key("accuracy"))) == ["c", "b", "a"]
    assert names(sort_history(runs, sort_key("accuracy"), reverse=True)) == ["b", "c", "a"]
    assert metric_names([*runs, entry("d", loss=1.0)]) == ["loss", "accuracy"]


def test_the_newest_longest_and_largest_come_first():
    runs = [entry("a", launched_at=1.0, size=5), entry("b", launched_at=2.0, seconds=9.0)]
    for key, first in (("launched", "b"), ("duration", "b"), ("size", "a"), ("name", "a")):
        assert names(sort_history(runs, sort_key(key)))[0] == first


def test_every_word_of_a_filter_must_occur_and_none_after_a_mark():
    change = (Change("--lr", "1", "2"),)
    runs = [entry("a", changes=change), entry("b", state="failed", note=RunNote(text="Good", starred=True))]
    assert names(filter_history(runs, ["--lr"])) == ["a"]
    assert names(filter_history(runs, ["lr 2"])) == ["a"]
    assert names(filter_history(runs, ["good", "FAILED"])) == ["b"]
    assert names(filter_history(runs, ["starred"])) == ["b"]
    assert names(filter_history(runs, ["!failed"])) == ["a"]
