"""Rows of lists of runs, and how to sort and filter them: the same for `rankdeck runs` and the app."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from engine.core.metrics.direction import Direction, direction, main_metric
from engine.core.plan.settings import Change
from engine.core.views.view import RunNote, RunSummary


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    summary: RunSummary
    seconds: float  # from launch to end, or until now
    metrics: dict[str, float | None]  # the newest value of each metric, the mean over ranks; None: not finite
    changes: tuple[Change, ...] | None
    """Settings that differ from the run of the same name before it; None: there is none, or a profile can't be read."""
    size: int | None  # bytes of its files on the disk; None: not counted
    note: RunNote = RunNote()
    best: dict[str, float] = {}  # see `best_values`; of runs of a sweep only
    toward: Direction | None = None  # `metrics.best` of its profile

    @property
    def change_words(self) -> str:
        """All changes in one line; empty: none, or unknown."""
        return ", ".join(change.words for change in self.changes or ())


_KEYS: dict[str, Callable[[HistoryEntry], float | str | None]] = {
    "launched": lambda one: -one.summary.launched_at,
    "ended": lambda one: None if one.summary.ended_at is None else -one.summary.ended_at,
    "duration": lambda one: -one.seconds,
    "name": lambda one: one.summary.run,
    "state": lambda one: one.summary.state,
    "step": lambda one: None if one.summary.step is None else -one.summary.step,
    "size": lambda one: None if one.size is None else -one.size,
    "starred": lambda one: not one.note.starred,
}

SORT_KEYS = tuple(_KEYS)  # besides metrics: newest, longest, largest first; names and states by the alphabet


class SortKey(NamedTuple):
    """An order of runs: by one of `SORT_KEYS`; the final value of a metric, lowest first; runs of a sweep also by the best value of a metric, best
    first, or by the values of a setting. `name`: of key, metric or setting."""

    kind: Literal["column", "last", "best", "value"]
    name: str

    @property
    def words(self) -> str:
        return {"best": "best ", "value": "value of "}.get(self.kind, "") + self.name


def sort_key(name: str) -> SortKey:
    """The key of that name among `SORT_KEYS`, or a metric."""
    return SortKey("column" if name in _KEYS else "last", name)


def value_of(entry: HistoryEntry, metric: str) -> float | None:
    """The final value of a metric. `loss` is that of the list of runs, the mean that front ends show."""
    if metric == "loss" and entry.summary.loss is not None:
        return entry.summary.loss
    return entry.metrics.get(metric)


def metric_names(entries: Sequence[HistoryEntry]) -> list[str]:
    """Names of all metrics that some run has, `loss` first."""
    names = {name for entry in entries for name in entry.metrics}
    if any(entry.summary.loss is not None for entry in entries):
        names.add("loss")
    return sorted(names, key=lambda name: (name != "loss", name))


def swept_names(entries: Sequence[HistoryEntry]) -> list[str]:
    """The settings that a sweep varies, if all entries are of one sweep."""
    if len({entry.summary.sweep for entry in entries}) != 1:
        return []
    return list(dict.fromkeys(name for entry in entries if (own := entry.summary.swept) for name in own.values))


def best_direction(entries: Sequence[HistoryEntry], metric: str) -> Direction | None:
    """Which value of a metric is the best in runs of a sweep."""
    return direction(metric, next((entry.toward for entry in entries if entry.toward), None))


def sweep_keys(entries: Sequence[HistoryEntry]) -> list[SortKey]:
    """Keys that sort runs of one sweep: by its settings, at last by the best value. Empty: the entries are not of one sweep."""
    names, metric = swept_names(entries), main_metric(entry.best for entry in entries)
    return [*(SortKey("value", name) for name in names), *([SortKey("best", metric)] if names and metric else [])]


def swept_value(entry: HistoryEntry, name: str) -> str:
    """The value of a setting that a sweep varies; empty: there is none."""
    return entry.summary.swept.values.get(name, "") if entry.summary.swept is not None else ""


def _by_value(entries: Sequence[HistoryEntry], name: str) -> Callable[[HistoryEntry], float | str | None]:
    """Numbers if all values of a setting are numbers, else texts."""
    texts = [text for entry in entries if (text := swept_value(entry, name))]
    try:
        numbers = {text: float(text) for text in texts}
    except ValueError:
        return lambda entry: swept_value(entry, name) or None
    return lambda entry: numbers.get(swept_value(entry, name))


def _value_by(key: SortKey, entries: Sequence[HistoryEntry]) -> Callable[[HistoryEntry], float | str | None]:
    match key.kind:
        case "column":
            return _KEYS[key.name]
        case "best":
            sign = -1.0 if best_direction(entries, key.name) == "max" else 1.0
            return lambda entry: None if key.name not in entry.best else sign * entry.best[key.name]
        case "value":
            return _by_value(entries, key.name)
        case "last":
            return lambda entry: value_of(entry, key.name)


def sort_history(entries: Sequence[HistoryEntry], key: SortKey, *, reverse: bool = False) -> list[HistoryEntry]:
    """The entries in an order. Those without a value come last, also in reverse."""
    value = _value_by(key, entries)
    found = [(value(entry), entry) for entry in entries]
    known = [pair for pair in found if pair[0] is not None]
    known.sort(key=lambda pair: pair[0], reverse=reverse)  # type: ignore[arg-type, return-value]
    return [entry for _, entry in known] + [entry for one, entry in found if one is None]


def filter_history(entries: Sequence[HistoryEntry], words: Sequence[str]) -> list[HistoryEntry]:
    """The entries in which every word occurs: in id, sweep, state, backend, reason, changes or note. `!word`: it must not occur."""
    return [entry for entry in entries if all(_fits(entry, word.lower()) for word in words if word)]


def _fits(entry: HistoryEntry, word: str) -> bool:
    run = entry.summary
    star = "starred" if entry.note.starred else ""
    sweep = f"{run.swept.sweep} {run.swept.words}" if run.swept is not None else ""
    texts = (run.run, sweep, run.state, run.backend, run.reason, entry.change_words, entry.note.text, star)
    text = "\n".join(texts).lower()
    return word[1:] not in text if word[0] == "!" and len(word) > 1 else word in text
