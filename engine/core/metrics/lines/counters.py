"""Finds the count of the training among the counts that a rank prints, and continues its steps over epochs.

A rank prints several counts: the steps of its training, validation, files that are loaded. The training's own carries the loss on its lines;
if none does, it is the one that advances with the losses, and if no loss is printed, the one that advances most. A count that begins again
is a new epoch: its steps go on from those of the epoch before.
"""

import msgspec

from engine.core.metrics.lines.counts import Kind
from engine.core.metrics.lines.formats import Line

MAX_COUNTERS = 32  # counts of one rank that are told apart; a program may make up any number of names
LAST_BARS = 2  # steps that a program without a terminal prints of its rich bars, at their end

_MORE = 1.5
"""A second count with losses takes over when it has advanced 1.5 times as often. So a warm-up before the training gives way, and the
evaluation after it does not take over."""

_NEAR_END = 0.9  # a count that falls back after this part of its total begins an epoch


class Counter(msgspec.Struct, kw_only=True):
    """One count. `offset`: steps of the epochs before."""

    count: int = 0
    total: int | None = None
    first: int = 0
    interval: int = 0
    offset: int = 0
    epoch: float | None = None
    begun: int = 0  # how often the count began again
    is_ahead: bool = False  # whether the count began again before its epoch changed: some bars get a new title later
    of_epoch: bool = False
    kind: Kind = ""
    """Of its newest line. `file`: it is in a file that the rank writes; `own`: the profile says so; `lead`: it may also be a rank."""
    advances: int = 0
    losses: int = 0  # lines with a loss
    with_losses: int = 0  # losses elsewhere before which it advanced
    has_moved: bool = False  # since the last loss
    is_pair: bool = False
    """Its lines have an epoch and a step where others have a step and its total: the first stays while the second grows."""
    agrees: int = 0  # lines of a bar that show the step of the training's own count, so that both count the same

    @property
    def step(self) -> int:
        """Steps in all."""
        return self.offset + self.count

    def grade(self) -> tuple[bool, bool, int, bool, int]:
        """The count with the greatest grade is probably the training's."""
        if self.kind == "own" or self.losses:
            return self.kind == "own", True, 0, False, self.advances
        return False, False, self.with_losses, self.kind in ("named", "file") and self.advances > 1, self.advances

    def take(self, line: Line, epoch: float | None, of_epoch: bool) -> None:
        """Adds a line of this count. `of_epoch`: the count is known to begin again with each epoch."""
        count = line.step if line.step is not None else self.count
        total, self.kind = line.steps, line.format.kind
        if total and count == self.count and self.kind == "named" and self.total and self.total < total:
            self.is_pair, self.total = True, None
        if self.is_pair and total is not None:
            count = total
        is_first = self.advances == 0
        if is_first:
            self.first, self.count, self.epoch = count, count, epoch
        elif self.kind != "file" and self._begins_again(count, epoch, of_epoch):
            is_same = self.epoch is None or epoch is None or epoch == self.epoch
            passed = 1 if is_same else int(epoch or 0) - int(self.epoch or 0)
            if self.is_ahead and count >= self.count:
                passed -= 1
            self.is_ahead = is_same
            whole = self.total if self.total is not None else self.count + self.interval - count
            self.offset = max(0, self.offset + passed * whole)
            self.begun += passed != 0
        if count > self.count:
            self.interval = count - self.count
        moved = is_first or count != self.count or epoch != self.epoch
        self.count, self.epoch = count, epoch
        if total is not None and not self.is_pair:
            self.total = total
        self.of_epoch = self.of_epoch or of_epoch or self.begun > 0
        if moved:
            self.advances += 1
            self.has_moved = True

    def complete(self) -> bool:
        """Notes that the last epoch is done: a bar that is removed at its end does not show its last steps. Returns whether that is known."""
        if self.of_epoch and self.total is not None and 2 * self.count >= self.total:
            self.count = self.total
            return True
        return False

    def _begins_again(self, count: int, epoch: float | None, of_epoch: bool) -> bool:
        """Whether the count belongs to another epoch. If it falls back otherwise, steps are done again."""
        is_other = epoch is not None and self.epoch is not None and int(epoch) != int(self.epoch)
        if of_epoch and is_other:
            return True
        if count >= self.count:
            return False
        at_end = self.total is not None and self.count + self.interval >= _NEAR_END * self.total
        return is_other or count <= self.first or (at_end and count <= max(self.first, self.interval))


def name_of(line: Line) -> str:
    """Which count a line is of. Counts without a name are told apart by their total, unless the total is of one epoch."""
    counter = line.format.counter
    if counter.endswith(":") and not line.format.of_epoch and line.format.kind != "own":
        return f"{counter}{line.steps}"
    return counter


def choose(counters: dict[str, Counter], owner: str, challenger: str) -> str:
    """The count of the training, after a line of `challenger`."""
    if owner not in counters or owner == challenger:
        return challenger
    if counters[owner].kind == "file" and counters[challenger].losses > LAST_BARS:
        return challenger
    now, other = counters[owner].grade(), counters[challenger].grade()
    if now[:2] == other[:2] and now[1]:
        done = counters[owner].total is not None and counters[owner].count == counters[owner].total
        if done and counters[owner].kind == "bare" and counters[challenger].kind == "named":
            return challenger  # `warmup 100/100 loss 6.5` is over once `step 1/5000 loss 6.4` comes
        return challenger if other[4] > _MORE * now[4] else owner
    return challenger if other > now else owner
