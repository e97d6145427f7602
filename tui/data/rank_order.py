"""The order of the ranks in their table, and the ranks that a filter shows. Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from engine.core.views.view import RankView
from tui.data.model import Row

Column = Literal[
    "rank", "node", "local", "state", "step", "throughput", "loss", "gpu", "memory", "cpu", "rss", "io", "late", "seen"
]

COLUMNS: tuple[Column, ...] = get_args(Column)  # columns that ranks can be sorted by, from left to right

_STATES = ("failed", "lost", "stalled", "nan", "slow", "stopped", "starting", "running", "exited")
"""States, and problems of a running rank: those that need attention first."""

_WORDS: dict[Column, tuple[str, str]] = {
    "rank": ("lowest", "highest"),
    "node": ("a to z", "z to a"),
    "local": ("lowest", "highest"),
    "state": ("failed", "exited"),
    "step": ("slowest", "fastest"),
    "throughput": ("slowest", "fastest"),
    "loss": ("highest", "lowest"),
    "gpu": ("least busy", "busiest"),
    "memory": ("largest", "smallest"),
    "cpu": ("busiest", "least busy"),
    "rss": ("largest", "smallest"),
    "io": ("most", "least"),
    "late": ("latest", "earliest"),
    "seen": ("longest silent", "newest"),
}
"""The ranks that come first in each column, and in reverse. Ranks that need attention come first."""


class Order(NamedTuple):
    column: Column = "rank"
    reverse: bool = False

    @property
    def words(self) -> str:
        """`by loss, highest first`; empty for the order by rank."""
        if self == Order():
            return ""
        first = _WORDS[self.column][self.reverse]
        return f"by {self.column}, {first}" + ("" if self.column == "node" else " first")

    @property
    def is_rising(self) -> bool:
        """Whether small values come first, for the arrow in the heading."""
        return (self.column in ("loss", "memory")) == self.reverse


ORDERS = (Order(), Order("state"), Order("step"))  # by rank, failed first, slowest first: what one key goes through


def arranged(rows: Iterable[Row], order: Order, query: str) -> list[Row]:
    """The rows that a filter shows, in order. Where there is no value, the row comes last; equal ones are in order of rank."""
    words = query.lower().split()
    shown = [row for row in rows if matches(row.view, words)] if words else list(rows)
    if order == Order():
        return shown
    key = _KEYS[order.column]
    known = [row for row in shown if key(row.view) is not None]
    unknown = [row for row in shown if key(row.view) is None]
    known.sort(key=lambda row: key(row.view), reverse=order.reverse)  # type: ignore[arg-type,return-value]
    return known + unknown


class Arrangement:
    """Rows of all ranks, and which of them are shown, in order. `every`: in order of rank. `order`: how they are sorted. `query`:
    see `matches`."""

    def __init__(self) -> None:
        self.every: Sequence[Row] = ()
        self.order = Order()
        self.query = ""
        self._places: dict[int, int] = {}
        self._placed_at: object = None

    def in_order(self, now: float) -> Sequence[Row]:
        """The rows to show. Once a second they may change places: a row that jumps with every number can't be read."""
        if self.order == Order() and not self.query:
            return self.every
        state = (self.order, self.query, len(self.every), int(now))
        if state != self._placed_at:
            self._placed_at = state
            rows = arranged(self.every, self.order, self.query)
            self._places = {row.view.rank: place for place, row in enumerate(rows)}
            return rows
        shown = [row for row in self.every if row.view.rank in self._places]
        return sorted(shown, key=lambda row: self._places[row.view.rank])


def matches(view: RankView, words: Iterable[str]) -> bool:
    """Whether a rank has every word. `words`: in lower case. A number, or a range such as `8-15`, means ranks; another word is part of
    the node's name, the state, the note or the newest line. A word after `!` must not be there."""
    text = f"{view.node} {view.state} {view.health} {view.note} {view.phase} {view.aside or view.last_line}".lower()
    for word in words:
        sought = word.removeprefix("!")
        if sought and _has(view.rank, text, sought) == word.startswith("!"):
            return False
    return True


def needs_attention(view: RankView) -> bool:
    """Whether a rank has failed, hangs or lags."""
    return view.state in ("failed", "lost") or (view.state == "running" and bool(view.health))


def _state_order(view: RankView) -> tuple[object, ...]:
    word = view.health if view.state == "running" and view.health in _STATES else view.state
    return (_STATES.index(word),)


def _has(rank: int, text: str, word: str) -> bool:
    first, dash, last = word.partition("-")
    if first.isdecimal() and (last.isdecimal() or not (dash or last)):
        return int(first) <= rank <= int(last or first)
    return word in text


def _finite(value: float | None) -> float:
    """The worst of the values that are not finite."""
    return math.inf if value is None or not math.isfinite(value) else value


_KEYS: dict[Column, Callable[[RankView], tuple[object, ...] | None]] = {
    "rank": lambda view: (view.rank,),
    "node": lambda view: (view.node,),
    "local": lambda view: (view.local_rank,),
    "state": _state_order,
    # A rank that has not begun is behind all others.
    "step": lambda view: (-1 if view.step is None else view.step, _finite(view.throughput)),
    "throughput": lambda view: None if view.throughput is None else (view.throughput,),
    "loss": lambda view: None if view.loss is None else (-_finite(view.loss),),
    "gpu": lambda view: None if view.gpu is None or view.gpu.utilisation is None else (view.gpu.utilisation,),
    "memory": lambda view: None if view.gpu is None or view.gpu.memory is None else (-view.gpu.memory,),
    "cpu": lambda view: None if view.process is None else (-view.process.cpu,),
    "rss": lambda view: None if view.process is None else (-view.process.memory,),
    "io": lambda view: (
        None if view.process is None or view.process.transferred is None else (-view.process.transferred,)
    ),
    "late": lambda view: None if view.late is None else (-view.late.share,),
    "seen": lambda view: None if view.seen is None else (view.seen,),
}
