"""Rows of lists of runs, and how to sort and filter them: the same for `rankdeck runs` and the app."""

from collections.abc import Callable, Sequence

import msgspec

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


def sort_history(entries: Sequence[HistoryEntry], key: str, *, reverse: bool = False) -> list[HistoryEntry]:
    """The entries in an order. Those without a value come last, also in reverse. `key`: one of `SORT_KEYS`, or a metric, whose lowest
    value comes first."""
    value = _KEYS.get(key) or (lambda entry: value_of(entry, key))
    known = [(found, entry) for entry in entries if (found := value(entry)) is not None]
    known.sort(key=lambda pair: pair[0], reverse=reverse)
    return [entry for _, entry in known] + [entry for entry in entries if value(entry) is None]


def filter_history(entries: Sequence[HistoryEntry], words: Sequence[str]) -> list[HistoryEntry]:
    """The entries in which every word occurs: in id, state, backend, reason, changes or note. `!word`: it must not occur."""
    return [entry for entry in entries if all(_fits(entry, word.lower()) for word in words if word)]


def _fits(entry: HistoryEntry, word: str) -> bool:
    run = entry.summary
    star = "starred" if entry.note.starred else ""
    text = "\n".join((run.run, run.state, run.backend, run.reason, entry.change_words, entry.note.text, star)).lower()
    return word[1:] not in text if word[0] == "!" and len(word) > 1 else word in text
