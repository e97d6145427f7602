"""Finds ranks that hang or lag, and curves that go wrong, from what ranks report.

Usual values are learned from the run itself: the time from one step to the next, of a rank and of its peers; the level of the loss; the
throughput. A fixed limit would be too long for a script with ten steps a second and too short for one with a step a minute.

Nothing is reported while a rank says that it does something else (`rankdeck.log(phase="eval")`), or before there are usual values.
"""

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from engine.core.metrics.progress import RankProgress
from engine.core.metrics.series import Point
from engine.core.plan.profile import HealthLimits
from engine.core.words import rank_words

Mark = Literal["stalled", "slow", "nan"]
Kind = Literal["stalled", "moving", "slow", "even", "nan", "spike", "drop", "restored", "raised", "stays"]
FEW_STEPS = 3  # steps until a rank's usual interval is known, and looks with new steps until ranks are compared
FEW_SIGNS = 10  # the same for a script without steps, whose output comes less regularly
SLOW_FOR = 10.0  # seconds for which a rank must lag before it is reported

PAUSE_SHARE = 1.5
"""A pause as long as this many times the longest one so far is no surprise: a script may save or evaluate without saying so."""

EARLY = 5.0  # seconds without a step until ranks are asked who waits for whom, while their usual interval is unknown

RAISED_FOR, STAYS_FOR = 3.0, 60.0
"""Seconds after the exception that ended its main thread, after which a rank is reported, and ended."""

WARM_UP = 20  # values of a loss or a throughput from which their level is known
SMOOTHING = 0.1  # share of a new value in the running mean of a loss and of its deviation
LEAST_SPREAD = 0.02  # a loss deviates by this share of it at least: one that hardly moves would spike with each step
SPIKE_PAUSE = 60.0  # seconds between two reports of spikes
NEW_RATES = 5  # seconds of throughput that are compared with those before


class RankMark(NamedTuple):
    """Why a rank needs attention. `seconds`: without a step, or from step to step if it is slow; `usual`: from step to step."""

    mark: Mark
    seconds: float
    usual: float


class RankHealth(NamedTuple):
    """A mark as front ends show it. `since`: seconds since the epoch, of the last step of a stalled rank."""

    mark: Mark
    since: float
    words: str


class Notice(NamedTuple):
    """A change that is reported as an event."""

    kind: Kind
    ranks: tuple[int, ...]
    text: str


class _Pace:
    """The steps of one rank over time."""

    def __init__(self, now: float) -> None:
        self.count: int | None = None
        self.at = now
        self.longest = 0.0
        self.steps = 0  # made while it was looked at
        self.lag_since: float | None = None
        self._intervals: deque[float] = deque(maxlen=32)
        self._usual: float | None = None

    def take(self, count: int, now: float, limit: float) -> None:
        """Adds the newest count. `limit`: pauses longer than twice this limit are not learned."""
        if self.count is not None and count > self.count:
            pause = now - self.at
            self._intervals.append(pause / (count - self.count))
            self.steps += count - self.count
            self._usual = None
            self.longest = max(min(pause, 2 * limit), self.longest * 0.995)
        if count != self.count:
            self.count, self.at = count, now

    @property
    def known(self) -> int:
        return len(self._intervals)

    @property
    def usual(self) -> float | None:
        """Seconds from one step to the next; None: unknown."""
        if self._usual is None and self._intervals:
            self._usual = statistics.median(self._intervals)
        return self._usual


class Health:
    """The problems of an attempt's ranks. Takes their newest values once a second."""

    def __init__(self, world_size: int, limits: HealthLimits, now: float = 0.0) -> None:
        """`now`: seconds of any clock, as in `look`."""
        self._limits = limits
        self._paces = [_Pace(now) for _ in range(world_size)]
        self._signs: list[tuple[int, float | None]] = [(0, None)] * world_size  # how often it was heard of, and when
        self._levels: dict[int, tuple[float, float, int]] = {}
        """Mean, deviation and number of losses of each rank."""
        self._odd: set[int] = set()  # ranks whose loss is not finite
        self._spiked_at = -math.inf
        self._rates: deque[float] = deque(maxlen=60)
        self._new_rates: deque[float] = deque(maxlen=NEW_RATES)
        self._is_low = False
        self._worst: dict[int, float] = {}  # for how long stalled ranks had no step, to report it when they go on
        self.marks: dict[int, RankMark] = {}
        self._raised: dict[int, float] = {}  # since when a rank is without its main thread
        self.told: dict[int, str] = {}  # a sentence about each rank whose main thread has ended by an exception
        self.has_waits = False
        """Whether ranks are known to wait for each other in collectives, before a usual interval is known."""

    def look(
        self,
        now: float,
        progress: Sequence[RankProgress],
        alive: Collection[int],
        points: Iterable[Point] = (),
        throughput: float | None = None,
    ) -> list[Notice]:
        """Updates `marks`, and returns what has changed. `now`: seconds of a clock that stops while this process is stopped, so that our own
        pauses don't count as the ranks'. `alive`: ranks that should be training, and can be heard."""
        by_step = any(one.step is not None for one in progress)
        peers = self._learn(now, progress, alive, by_step=by_step)
        busy = {rank for rank in alive if not _is_elsewhere(progress[rank])}
        few = FEW_STEPS if by_step else FEW_SIGNS
        before, self.marks = self.marks, {}
        for rank in sorted(busy):
            if mark := self._mark(now, rank, peers, few, by_step=by_step):
                self.marks[rank] = mark
        self.has_waits = self.has_waits and self.is_quiet(now, EARLY)
        notices = [
            *self._pauses(before),
            *self._raises(now, progress, alive),
            *self._losses(now, progress, alive, points),
        ]
        for rank in self._odd:
            self.marks.setdefault(rank, RankMark("nan", 0.0, 0.0))
        if len(busy) == len(alive) and busy and not any(one.mark == "stalled" for one in self.marks.values()):
            notices += self._throughput(throughput)
        return notices

    # --- steps -------------------------------------------------------------------------------------------------------

    def _learn(
        self, now: float, progress: Sequence[RankProgress], alive: Collection[int], *, by_step: bool
    ) -> float | None:
        """Takes in the newest steps; returns the usual interval of all ranks, if it is known."""
        known = [usual for pace in self._paces if (usual := pace.usual) is not None]
        peers = statistics.median_low(known) if known else None
        for rank, (one, pace) in enumerate(zip(progress, self._paces, strict=True)):
            if not by_step and one.seen != self._signs[rank][1]:
                self._signs[rank] = self._signs[rank][0] + 1, one.seen
            count = one.step if by_step else self._signs[rank][0]
            if rank not in alive or _is_elsewhere(one):
                pace.count, pace.at = count, now
            elif count is not None:
                pace.take(count, now, self._limit(pace, peers))
        return peers

    def _limit(self, pace: _Pace, peers: float | None) -> float:
        usual = max(pace.usual or 0.0, peers or 0.0)
        return max(self._limits.least, self._limits.stalled * usual, PAUSE_SHARE * pace.longest)

    def _mark(self, now: float, rank: int, peers: float | None, few: int, *, by_step: bool) -> RankMark | None:
        pace, limits = self._paces[rank], self._limits
        usual, quiet = pace.usual or peers, now - pace.at
        if usual is None or all(one.steps < few for one in self._paces):
            return RankMark("stalled", quiet, 0.0) if self.has_waits else None
        if limits.stalled and quiet > self._limit(pace, peers):
            return RankMark("stalled", quiet, usual)
        lags = (
            by_step and limits.slow and pace.usual and peers and pace.known >= few and pace.usual > limits.slow * peers
        )
        if not lags:
            pace.lag_since = None
            return None
        pace.lag_since = now if pace.lag_since is None else pace.lag_since
        return RankMark("slow", pace.usual or 0.0, peers or 0.0) if now - pace.lag_since >= SLOW_FOR else None

    def is_quiet(self, now: float, seconds: float | None = None) -> bool:
        """Whether no rank has made a step for some seconds (`health.least`), and their usual interval is not known."""
        least = self._limits.least if seconds is None else seconds
        quiet = all(one.steps < FEW_STEPS and now - one.at > least for one in self._paces)
        return quiet and bool(self._limits.stalled)

    def _raises(self, now: float, progress: Sequence[RankProgress], alive: Collection[int]) -> list[Notice]:
        """Ranks whose main thread has ended by an exception, and whose process stays."""
        notices: list[Notice] = []
        raised = {rank: self._raised.get(rank, now) for rank in alive if progress[rank].raised}
        for rank, since in raised.items():
            text = f"rank {rank} raised {progress[rank].raised}"
            if now - since >= RAISED_FOR:
                self.marks[rank] = RankMark("stalled", now - since, 0.0)
                if rank not in self.told:
                    notices.append(Notice("raised", (rank,), text))
                self.told[rank] = text
            if now - since >= STAYS_FOR:
                raised[rank] = math.inf
                notices.append(Notice("stays", (rank,), f"rank {rank} is ended: {text}"))
        self.told = {rank: self.told[rank] for rank in raised if rank in self.told}
        self._raised = raised
        return notices

    def _pauses(self, before: Mapping[int, RankMark]) -> list[Notice]:
        notices: list[Notice] = []
        stalled = {rank: one for rank, one in self.marks.items() if one.mark == "stalled"}
        if new := tuple(rank for rank in stalled if rank not in self._worst):
            seconds, usual = max(stalled[rank].seconds for rank in new), stalled[new[0]].usual
            text = f"{rank_words(new)}: no step for {seconds:.0f} s"
            notices.append(Notice("stalled", new, f"{text}; usual: {_seconds(usual)}" if usual else text))
        if over := tuple(rank for rank in self._worst if rank not in stalled):
            seconds = max(self._worst.pop(rank) for rank in over)
            notices.append(Notice("moving", over, f"{rank_words(over)}: continues after about {seconds:.0f} s"))
        self._worst |= {rank: one.seconds for rank, one in stalled.items()}
        lagged = {rank for rank, one in before.items() if one.mark == "slow"}
        if slow := tuple(rank for rank, one in self.marks.items() if one.mark == "slow" and rank not in lagged):
            mark = self.marks[slow[0]]
            text = f"{rank_words(slow)}: slow, {_seconds(mark.seconds)} a step; the others: {_seconds(mark.usual)}"
            notices.append(Notice("slow", slow, text))
        if even := tuple(rank for rank in before if rank in lagged and rank not in self.marks):
            notices.append(Notice("even", even, f"{rank_words(even)}: as fast as the others again"))
        return notices

    # --- curves ------------------------------------------------------------------------------------------------------

    def _losses(
        self, now: float, progress: Sequence[RankProgress], alive: Collection[int], points: Iterable[Point]
    ) -> list[Notice]:
        odd: dict[int, int | None] = {}
        spike: tuple[float, int, float, float, int | None] | None = None
        for point in points:
            if point.key != "loss" or point.rank not in alive:
                continue
            if point.value is None:
                odd.setdefault(point.rank, point.step)
            elif (level := self._take_loss(point.rank, point.value)) is not None:
                height = (point.value - level) / (abs(level) or 1.0)
                spike = max(spike or (height, *_told(point, level)), (height, *_told(point, level)))
        is_odd = {rank: not math.isfinite(progress[rank].loss or 0.0) for rank in self._odd | odd.keys()}
        self._odd = {rank for rank in is_odd if rank in alive and (rank in odd or is_odd[rank])}
        notices: list[Notice] = []
        if odd:
            ranks = tuple(sorted(odd))
            step = odd[ranks[0]]
            at = f" at step {step}" if step is not None else ""
            word = str(progress[ranks[0]].loss) if is_odd[ranks[0]] else "nan"
            notices.append(Notice("nan", ranks, f"the loss of {rank_words(ranks)} is {word}{at}"))
        if spike is not None and now - self._spiked_at >= SPIKE_PAUSE:
            self._spiked_at = now
            _, rank, value, level, step = spike
            at = f" at step {step}" if step is not None else ""
            text = f"the loss of rank {rank} spikes{at}: {value:.4g} after about {level:.4g}"
            notices.append(Notice("spike", (rank,), text))
        return notices

    def _take_loss(self, rank: int, value: float) -> float | None:
        """Adds a loss. Returns the level before it if it is a spike."""
        mean, spread, count = self._levels.get(rank, (value, 0.0, 0))
        reach = self._limits.spike * max(spread, LEAST_SPREAD * abs(mean))
        is_spike = bool(self._limits.spike) and count >= WARM_UP and value - mean > reach > 0
        taken = min(value, mean + reach) if is_spike else value
        after = mean + SMOOTHING * (taken - mean), spread + SMOOTHING * (abs(taken - mean) - spread)
        self._levels[rank] = (*after, count + 1)
        return mean if is_spike else None

    def _throughput(self, rate: float | None) -> list[Notice]:
        if rate is None or not self._limits.drop:
            return []
        self._new_rates.append(rate)
        if len(self._new_rates) < NEW_RATES:
            return []
        now = statistics.mean(self._new_rates)
        usual = statistics.median(self._rates) if len(self._rates) >= WARM_UP else None
        if not self._is_low:
            self._rates.append(self._new_rates[0])
        if usual is None:
            return []
        if not self._is_low and now < self._limits.drop * usual:
            self._is_low = True
            return [Notice("drop", (), f"the throughput dropped to {now:.4g} per second; usual: {usual:.4g}")]
        if self._is_low and now > (1 + self._limits.drop) / 2 * usual:
            self._is_low = False
            return [Notice("restored", (), f"the throughput is {now:.4g} per second again")]
        return []


def _is_elsewhere(progress: RankProgress) -> bool:
    """Whether a rank has said that it does something else than training, or is done with it."""
    is_done = progress.steps is not None and progress.step is not None and progress.step >= progress.steps
    return bool(progress.phase) or is_done or progress.meeting == "joining"


def _told(point: Point, level: float) -> tuple[int, float, float, int | None]:
    return point.rank, point.value or 0.0, level, point.step


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"
