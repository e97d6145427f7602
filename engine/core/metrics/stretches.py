"""When a run has made its steps: a few numbers for each process group, from which `goodput` computes. The step of a run is the newest that any rank has
reported; its time is that of the read (or that in a tracker's file), so that no clocks of nodes are compared. Pure."""

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

WAITED = "rankdeck.waited"  # the key of a rank's report of the seconds that its collectives have waited for others
LEAST_TIME = 10.0  # seconds of reports from each rank until they are compared


class Waits(NamedTuple):
    """How long the collectives of a rank have waited for others, in seconds by its own clock: the newest report less the first."""

    began: float
    before: float
    at: float
    waited: float


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a rank is late: the share of the time since the first step, and seconds a step."""

    share: float
    step_seconds: float


class Stretch(msgspec.Struct, kw_only=True):
    """The steps of one generation of an attempt. Times are in seconds since the epoch, others in seconds.

    `heard_at`: when a rank last reported another step than before; some scripts count the steps of each epoch anew. `is_joined`: the first report is that of ranks which join with so many steps done, instead of a step made. `highest`: the newest step of earlier
    stretches. `stride`: the fewest steps from one report to the next; 0: unknown. `again`: steps after the first report that an earlier stretch has
    made too; `repeating`: their time. `waiting`: from one report to the next, where ranks were noticed to hang. `hangs`: since the newest one.
    """

    attempt: int
    generation: int
    first: int
    first_at: float
    last: int
    last_at: float
    heard_at: float
    highest: int = 0
    is_joined: bool = False
    stride: int = 0
    again: int = 0
    repeating: float = 0.0
    waiting: float = 0.0
    hangs: bool = False
    waits: dict[int, Waits] = {}  # of ranks over mpi and ucc

    @property
    def repeated(self) -> int:
        """How many of its steps an earlier stretch has made too: from the first report on, which is of `stride` steps."""
        begins_again = 0 < self.first <= self.highest and not self.is_joined
        return self.again + (max(1, self.stride) if begins_again else 0)

    def take_wait(self, rank: int, at: float, waited: float) -> None:
        """Takes a report of waiting. Less than before: a group is gone, and the count begins again."""
        known = self.waits.get(rank)
        first = (at, waited) if known is None or waited < known.waited else (known.began, known.before)
        self.waits[rank] = Waits(*first, at, waited)

    def late(self, world_size: int) -> dict[int, Late]:
        """How late each rank is at collectives, in groups of all ranks; empty: not known.

        The rank that waits least arrives last. It is late by how much less it waits than most ranks do: the median; of two ranks, the one that waits more.
        Asynchronous collectives wait while ranks compute, so a run loses at most so much.
        """
        known = [(rank, one) for rank, one in sorted(self.waits.items()) if one.at - one.began >= LEAST_TIME]
        if len(known) < max(2, world_size) or self.last == self.first:
            return {}
        shares = {rank: min(1.0, (one.waited - one.before) / (one.at - one.began)) for rank, one in known}
        if not any(shares.values()):
            return {}  # its groups are not of all ranks
        usual, pace = statistics.median_high(shares.values()), (self.last_at - self.first_at) / (self.last - self.first)
        found = {rank: max(0.0, usual - share) for rank, share in shares.items()}
        return {rank: Late(share=share, step_seconds=share * pace) for rank, share in found.items()}


class Stretches:
    """All stretches of a run, the oldest first. `known`: those of before `attempt`, and its own ones."""

    def __init__(self, known: Iterable[Stretch] = (), attempt: int = 0) -> None:
        self.known = list(known)
        self.start_attempt(attempt)

    def start_attempt(self, attempt: int) -> None:
        self._attempt = attempt
        self._base = self.known[-1].generation if self.known and self.known[-1].attempt == attempt else 0
        self._steps: dict[int, int] = {}  # the newest of each rank
        self._generations: dict[int, int | None] = {}
        """The newest that each rank has joined; None: it waits for the next one."""

    @property
    def _is_stepping(self) -> bool:
        return bool(self.known) and self.known[-1].attempt == self._attempt

    def take_record(self, at: float, rank: int, record: Mapping[str, object], step: int | None) -> None:
        """Takes a line of a rank's metrics file, read at `at`, in seconds since the epoch. `step`: the rank's, with this line."""
        word, generation = record.get("elastic"), record.get("generation")
        if word is not None:
            is_known = word == "joined" and type(generation) is int and 0 <= generation < 1 << 31
            self._generations[rank] = generation if is_known else None  # type: ignore[assignment]
        sent, waited = record.get("t"), record.get(WAITED)  # a rank may write anything
        if isinstance(sent, float) and isinstance(waited, float) and math.isfinite(sent + waited) and self._is_stepping:
            self.known[-1].take_wait(rank, sent, waited)
        if "step" in record:
            self.take(at, rank, step, is_joined=word == "joined")

    def take(self, at: float, rank: int, step: int | None, *, is_joined: bool = False) -> None:
        """Takes a step that a rank has reported; None: no step."""
        attempt, generation = self._attempt, self._generations.get(rank, self._base)
        if step is None or generation is None:
            return
        one, before = self.known[-1] if self.known else None, self._steps.get(rank)
        self._steps[rank] = step
        if one is None or (attempt, generation) > (one.attempt, one.generation):
            highest = max((each.last for each in self.known), default=0)
            self.known.append(
                Stretch(attempt=attempt, generation=generation, first=step, first_at=at, last=step, last_at=at, heard_at=at,
                        highest=highest, is_joined=is_joined)
            )  # fmt: skip
            return
        if (attempt, generation) < (one.attempt, one.generation):
            return
        if is_joined and one.is_joined and one.last == one.first:
            one.first_at = one.last_at = one.heard_at = at  # the last rank to join counts
        if step == before:
            return
        at = max(at, one.heard_at)
        if one.hangs:
            one.waiting += at - one.heard_at
            one.last_at, one.hangs = at, False
        if step > one.last:
            gained = step - one.last
            again = min(max(0, one.highest - one.last), gained)
            one.again += again
            one.repeating += (at - one.last_at) * again / gained
            one.stride = min(one.stride or gained, gained)
            one.last, one.last_at = step, at
        one.heard_at = at

    def hang(self) -> None:
        """Notes that ranks hang: the newest pause is no training."""
        if self._is_stepping:
            self.known[-1].hangs = True
