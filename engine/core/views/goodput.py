"""The use of a run's time, over all attempts, generations and jobs. Pure.

Each moment from the launch to the end (or to now) counts once, so the parts add up to the run's time:

- *training*: from the first report of a step in a process group to the last one. Evaluation and checkpoints between steps are a part of it.
- *repeating*: the share of it in steps that an earlier attempt or generation had made already.
- *starting*: nodes, store and processes start; and until the first report: imports, process group, first step. After a rejoin: until all ranks have joined.
- *waiting*: hangs, from the last step before to the next one; a failure that is held; the time until another job or a user continues the run.
- *ending*: from the last report of an attempt that is over, until all of its processes are gone.
- *unknown*: the time of ranks in a run that reports no steps. If a script reports every n-th step, its first report covers n steps, which
  were made somewhere in the start. So as much of the start is unknown as n later steps have taken.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from engine.core.metrics.stretches import Stretch
from engine.core.run import state as st
from engine.core.words import count

Part = Literal["training", "repeating", "starting", "waiting", "ending", "unknown"]

_PAST: dict[Part, str] = {"training": "trained", "repeating": "repeated", "starting": "started", "waiting": "waited",
                          "ending": "ended", "unknown": "unknown"}  # fmt: skip
_KINDS: dict[st.SpanKind, Part] = {"starting": "starting", "held": "waiting", "ending": "ending", "away": "waiting",
                                   "running": "unknown"}  # fmt: skip


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each part until `as_of`, in seconds since the epoch. Since then the run is `doing` one of them; None: it has ended."""

    as_of: float
    doing: Part | None = None
    training: float = 0.0
    repeating: float = 0.0
    starting: float = 0.0
    waiting: float = 0.0
    ending: float = 0.0
    unknown: float = 0.0
    repeated_steps: int = 0

    def until(self, now: float) -> "Goodput":
        """The same at a later time, in seconds since the epoch."""
        if self.doing is None:
            return self
        more = max(0.0, now - self.as_of)
        return msgspec.structs.replace(self, as_of=self.as_of + more, **{self.doing: getattr(self, self.doing) + more})

    def shares(self) -> dict[Part, float]:
        """The share of each part that is not 0."""
        seconds: dict[Part, float] = {part: getattr(self, part) for part in _PAST}
        whole = sum(seconds.values())
        return {part: one / whole for part, one in seconds.items() if one} if whole else {}

    @property
    def words(self) -> str:
        """`trained 82 %, repeated 2 % (40 steps), started 6 %, waited 10 %`; empty: it has just begun."""
        told = []
        for part, share in self.shares().items():
            steps = f" ({count(self.repeated_steps, 'step')})" if part == "repeating" else ""
            if share >= 0.005 or steps:
                told.append(f"{_PAST[part]} {share:.0%}{steps}".replace("%", " %"))
        return ", ".join(told)


def goodput(state: st.RunState, stretches: Sequence[Stretch]) -> Goodput:
    """The parts of a run's time so far."""
    seconds: dict[Part, float] = dict.fromkeys(_PAST, 0.0)
    by_group = {(one.attempt, one.generation): one for one in stretches}
    stride = min((one.stride for one in stretches if one.stride), default=0)
    doing, as_of = _KINDS["starting"], state.launched_at
    for span, end in zip(state.spans, [*(one.begin for one in state.spans[1:]), None], strict=True):
        doing, as_of = _KINDS[span.kind], span.begin
        if span.kind == "running" and (own := by_group.get((span.attempt, span.generation))):
            doing, as_of = _stepping(seconds, span.begin, end, own, own.stride or stride)
        elif span.kind == "running":
            doing = "starting" if stretches else "unknown"
        if end is not None:
            seconds[doing] += end - as_of
    is_over = isinstance(state.phase, st.Ended)
    repeated = sum(one.repeated for one in stretches)
    return Goodput(as_of=as_of, doing=None if is_over else doing, repeated_steps=repeated, **seconds)


def _stepping(
    seconds: dict[Part, float], begin: float, end: float | None, one: Stretch, stride: int
) -> tuple[Part, float]:
    """Adds the parts of a span from its begin to the last report of a step, or to its end if that was earlier. Returns the part after it, and its begin."""
    until = math.inf if end is None else end
    first = max(begin, min(one.first_at, until))
    last = max(first, min(one.heard_at, until))
    unclear = _unclear(one, stride, first - begin, max(0.0, min(one.last_at, last) - first))
    waiting = min(one.waiting, last - first)
    repeating = min(one.repeating, last - first - waiting)
    parts = (unclear, first - begin - unclear, waiting, repeating, last - first - waiting - repeating)
    names: tuple[Part, ...] = ("unknown", "starting", "waiting", "repeating", "training")
    for name, part in zip(names, parts, strict=True):
        seconds[name] += part
    if one.hangs or end is not None:
        return "waiting" if one.hangs else "ending", last
    return "repeating" if one.last < one.highest else "training", last


def _unclear(one: Stretch, stride: int, gap: float, steps: float) -> float:
    """Seconds of the start, of `gap` seconds, in which steps may have been made already. `steps`: seconds from the first report to the last."""
    if one.is_joined or one.first <= 1 or stride == 1:
        return 0.0
    made = one.last - one.first
    return min(gap, min(stride, one.first) * steps / made) if made else gap
