"""Compares the process groups of all ranks: which rank waits for which.

The records come from torch's flight recorder, or have its layout: ranks of an active run send them, and torch writes files after a timeout
of nccl. All ranks of a group number its collectives alike for each backend. So a rank has not called the oldest pending collective if its
own newest number is smaller.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from engine.core.failures.flight_recorder import Group, Key, Operation, RankRecord, cut
from engine.core.patterns import late
from engine.core.words import rank_words

MIN_WAIT = 1.0
"""Seconds that a collective of an active run must be pending to be reported: ranks do not answer at the same instant."""

MAX_SENTENCES = 4  # groups reported at most; the group that has waited longest comes first
MAX_NAMED = 8  # ranks named in one sentence; the others are counted

_UNEVEN = late(r"all_?to_?all|coalesced|oop|^(?:gather|scatter|barrier)")
"""Operations whose tensors may differ from rank to rank."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """An operation in which ranks wait."""

    sentence: str
    late: tuple[int, ...]  # ranks that have not called it, if known
    waiting: tuple[int, ...] = ()
    different: bool = False  # whether ranks have called different operations, so that none of them can go on


def are_stuck(waits: Sequence[Wait]) -> bool:
    """Whether ranks can't go on: they have called different operations, or all that others wait for wait themselves."""
    waiting = {rank for one in waits for rank in one.waiting}
    return any(one.different or (one.late and waiting.issuperset(one.late)) for one in waits)


def compare(records: Mapping[int, RankRecord | None]) -> list[Wait]:
    """Which ranks wait for which: in collectives, then in sends and receives, longest waits first."""
    collectives: list[tuple[float, Wait]] = []
    transfers: list[tuple[float, Wait]] = []
    keys = {key for one in records.values() if one is not None for key in one.groups}
    backends = Counter(name for name, _ in keys)
    for key, ranks in _known_groups(records):
        members = [rank for rank in sorted(records) if not ranks or any(rank in span for span in ranks)]
        seen = {rank: group for rank in members if (group := _seen(records[rank], key, ranks)) is not None}
        name, backend = key
        over = f" over {cut(backend)}" if backends[name] > 1 else ""
        collectives += _waits_in_collectives(members, records, seen, over)
        transfers += _waits_in_transfers(records, seen, over)
    found = [
        wait
        for kind in (collectives, transfers)
        for seconds, wait in sorted(kind, key=lambda one: -one[0])
        if seconds >= MIN_WAIT or not seconds
    ]
    return found[:MAX_SENTENCES]


def _known_groups(records: Mapping[int, RankRecord | None]) -> list[tuple[Key, tuple[range, ...]]]:
    """Groups with pending operations, with their ranks: disjoint ranks may create groups of the same name."""
    known = {
        (key, group.ranks): None
        for one in records.values()
        if one is not None
        for key, group in one.groups.items()
        if any(operation.is_under_way for operation in group.operations)
    }
    return list(known)


def _seen(record: RankRecord | None, key: Key, ranks: tuple[range, ...]) -> Group | None:
    """A group as a rank sees it; without operations if the rank never used the group. None: unknown."""
    if record is None:
        return None
    group = record.groups.get(key)
    if group is None or (group.ranks and group.ranks != ranks):
        group = Group(title="", ranks=ranks, operations=())
    return None if record.is_evicted and not group.operations else group


def _waits_in_collectives(
    members: Sequence[int], records: Mapping[int, RankRecord | None], seen: Mapping[int, Group], over: str
) -> Iterator[tuple[float, Wait]]:
    """The oldest pending collective of a group: which ranks wait in it, how long, and why."""
    calls = {
        rank: of_rank
        for rank, group in seen.items()
        if (of_rank := [one for one in group.operations if not one.is_transfer]) or not _is_evicted(records[rank])
    }
    under_way = [one for of_rank in calls.values() for one in of_rank if one.is_under_way]
    if not under_way:
        return
    number = min(one.number for one in under_way)
    here = {rank: one for rank, of_rank in calls.items() for one in of_rank if one.number == number}
    waiting = [rank for rank, one in here.items() if one.is_under_way]
    late = [rank for rank, of_rank in calls.items() if max((one.number for one in of_rank), default=0) < number]
    silent = [rank for rank in members if rank not in calls]
    seconds = max(_age(records[rank], here[rank]) for rank in waiting)
    title = seen[waiting[0]].title + over
    which = f"#{number} of {title}"
    if different := _different(here, which):
        sentence = different + (f"; {_has_not(late)} called it" if late else "")
    else:
        what = _words(here[waiting[0]], which)
        wait = _say(waiting, "waits in", "wait in")
        left = [rank for rank in calls if rank not in waiting and rank not in late]
        if late:
            sentence = f"{_has_not(late)} called {what}; {wait} it{_since(seconds)}"
        elif silent:
            hidden = _say(silent, "does not report its collectives", "do not report their collectives")
            sentence = f"{wait} {what}{_since(seconds)}; {hidden}"
        elif left:
            sentence = f"{wait} {what}{_since(seconds)}; {_say(left, 'has left it', 'have left it')}"
        else:
            sentence = f"all ranks of {title} are in {_words(here[waiting[0]], f'#{number}')}{_since(seconds)}"
    yield seconds, Wait(sentence=sentence, late=tuple(late), waiting=tuple(waiting), different=bool(different))


def _different(here: Mapping[int, Operation], which: str) -> str:
    """The call of each rank, if ranks call different operations under the same number; else empty."""
    known = {rank: one for rank, one in here.items() if one.name}
    names = {one.name for one in known.values()}
    is_even = not any(_UNEVEN.search(name) for name in names)
    if len(names) < 2 and not (is_even and len({one.tensors for one in known.values()}) > 1):
        return ""
    calls: dict[str, list[int]] = {}
    for rank, one in known.items():
        calls.setdefault(f"{one.name}({one.tensors})", []).append(rank)
    said = ", ".join(f"{rank_words(ranks, MAX_NAMED)} {call}" for call, ranks in calls.items())
    return f"ranks call different operations as {which}: {said}"


def _waits_in_transfers(
    records: Mapping[int, RankRecord | None], seen: Mapping[int, Group], over: str
) -> Iterator[tuple[float, Wait]]:
    """Pending sends and receives. Two ranks do not share their numbers, so ranks can't be compared."""
    for rank, group in seen.items():
        oldest = next((one for one in group.operations if one.is_transfer and one.is_under_way), None)
        if oldest is not None:
            seconds = _age(records[rank], oldest)
            sentence = f"rank {rank} waits in {_words(oldest, f'of {group.title}{over}')}{_since(seconds)}"
            yield seconds, Wait(sentence=sentence, late=())


def _is_evicted(record: RankRecord | None) -> bool:
    return record is not None and record.is_evicted


def _words(operation: Operation, which: str) -> str:
    tensors = f" ({operation.tensors})" if operation.tensors else ""
    return f"{operation.name or 'a collective'} {which}{tensors}"


def _has_not(ranks: Sequence[int]) -> str:
    return _say(ranks, "has not", "have not")


def _say(ranks: Sequence[int], of_one: str, of_several: str) -> str:
    return f"{rank_words(ranks, MAX_NAMED)} {of_one if len(ranks) == 1 else of_several}"


def _age(record: RankRecord | None, operation: Operation) -> float:
    """Seconds, by the clock of the rank's node; 0: unknown."""
    return max(0.001, (record.now - operation.created) / 1e9) if record is not None and record.now else 0.0


def _since(seconds: float) -> str:
    if not seconds:
        return ""
    return f" for {seconds:.0f} s" if seconds < 120 else f" for {seconds / 60:.0f} min"
