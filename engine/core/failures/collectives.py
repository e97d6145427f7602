"""Who waits for whom: what each rank's process groups are at, compared.

It comes from torch's flight recorder, or in its layout: of a run that goes on from the ranks themselves, of nccl's that has timed out from
the files that torch has written. Collectives of a group over one backend are numbered alike on all its ranks. So of the oldest that is
under way anywhere, a rank whose newest has a smaller number has not called it, and of the others each can be told what it called.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from engine.core.failures.flight_recorder import Group, Key, Operation, Told, cut
from engine.core.words import rank_words

PATIENCE = 1.0
"""Seconds that a collective of a live run is under way before it is told: ranks do not answer in the same instant."""

MOST_TOLD = 4
"""Sentences, one for each group that waits; the one that has waited longest comes first."""

MAX_NAMED = 8
"""Ranks that are named in one sentence; more are counted."""

_UNEVEN = re.compile(r"all_?to_?all|coalesced|oop|^(?:gather|scatter|barrier)")
"""Operations whose tensors may differ from rank to rank."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that wait in an operation."""

    sentence: str
    late: tuple[int, ...]
    """Ranks that have not called it, where that is known."""


def compare(told: Mapping[int, Told | None]) -> list[Wait]:
    """Who waits for whom: in collectives, then in sends and receives; those first that have waited longest.

    Args:
        told: what each rank of the run tells; None: nothing.
    """
    collectives: list[tuple[float, Wait]] = []
    transfers: list[tuple[float, Wait]] = []
    keys = {key for one in told.values() if one is not None for key in one.groups}
    backends = Counter(name for name, _ in keys)
    for key, ranks in _known_groups(told):
        members = [rank for rank in sorted(told) if not ranks or any(rank in span for span in ranks)]
        seen = {rank: group for rank in members if (group := _seen(told[rank], key, ranks)) is not None}
        name, backend = key
        over = f" over {cut(backend)}" if backends[name] > 1 else ""
        collectives += _waits_in_collectives(members, told, seen, over)
        transfers += _waits_in_transfers(told, seen, over)
    found = [
        wait
        for kind in (collectives, transfers)
        for seconds, wait in sorted(kind, key=lambda one: -one[0])
        if seconds >= PATIENCE or not seconds
    ]
    return found[:MOST_TOLD]


def _known_groups(told: Mapping[int, Told | None]) -> list[tuple[Key, tuple[range, ...]]]:
    """Groups with their ranks: where ranks make groups without one another, a name may be given twice."""
    known = {
        (key, group.ranks): None
        for one in told.values()
        if one is not None
        for key, group in one.groups.items()
        if any(operation.is_under_way for operation in group.operations)
    }
    return list(known)


def _seen(told: Told | None, key: Key, ranks: tuple[range, ...]) -> Group | None:
    """A group as a rank sees it; one that it has never been in has had no operation there. None: nobody knows."""
    if told is None:
        return None
    group = told.groups.get(key)
    if group is None or (group.ranks and group.ranks != ranks):
        group = Group(title="", ranks=ranks, operations=())
    return None if told.is_evicted and not group.operations else group


def _waits_in_collectives(
    members: Sequence[int], told: Mapping[int, Told | None], seen: Mapping[int, Group], over: str
) -> Iterator[tuple[float, Wait]]:
    """Of the oldest collective that is under way anywhere: who waits in it since when, and why."""
    calls = {
        rank: of_rank
        for rank, group in seen.items()
        if (of_rank := [one for one in group.operations if not one.is_transfer]) or not _is_evicted(told[rank])
    }
    under_way = [one for of_rank in calls.values() for one in of_rank if one.is_under_way]
    if not under_way:
        return
    number = min(one.number for one in under_way)
    here = {rank: one for rank, of_rank in calls.items() for one in of_rank if one.number == number}
    waiting = [rank for rank, one in here.items() if one.is_under_way]
    late = [rank for rank, of_rank in calls.items() if max((one.number for one in of_rank), default=0) < number]
    silent = [rank for rank in members if rank not in calls]
    seconds = max(_age(told[rank], here[rank]) for rank in waiting)
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
            hidden = _say(silent, "does not say what it is at", "do not say what they are at")
            sentence = f"{wait} {what}{_since(seconds)}; {hidden}"
        elif left:
            sentence = f"{wait} {what}{_since(seconds)}; {_say(left, 'has left it', 'have left it')}"
        else:
            sentence = f"all ranks of {title} are in {_words(here[waiting[0]], f'#{number}')}{_since(seconds)}"
    yield seconds, Wait(sentence=sentence, late=tuple(late))


def _different(here: Mapping[int, Operation], which: str) -> str:
    """Where ranks call different things under one number: what each calls."""
    known = {rank: one for rank, one in here.items() if one.name}
    names = {one.name for one in known.values()}
    is_even = not any(_UNEVEN.search(name) for name in names)
    if len(names) < 2 and not (is_even and len({one.tensors for one in known.values()}) > 1):
        return ""
    calls: dict[str, list[int]] = {}
    for rank, one in known.items():
        calls.setdefault(f"{one.name}({one.tensors})", []).append(rank)
    said = ", ".join(f"{rank_words(ranks, MAX_NAMED)} {call}" for call, ranks in calls.items())
    return f"ranks call different things as {which}: {said}"


def _waits_in_transfers(
    told: Mapping[int, Told | None], seen: Mapping[int, Group], over: str
) -> Iterator[tuple[float, Wait]]:
    """Sends and receives are numbered by no order that two ranks share: it is only told who waits in which."""
    for rank, group in seen.items():
        oldest = next((one for one in group.operations if one.is_transfer and one.is_under_way), None)
        if oldest is not None:
            seconds = _age(told[rank], oldest)
            sentence = f"rank {rank} waits in {_words(oldest, f'of {group.title}{over}')}{_since(seconds)}"
            yield seconds, Wait(sentence=sentence, late=())


def _is_evicted(told: Told | None) -> bool:
    return told is not None and told.is_evicted


def _words(operation: Operation, which: str) -> str:
    tensors = f" ({operation.tensors})" if operation.tensors else ""
    return f"{operation.name or 'a collective'} {which}{tensors}"


def _has_not(ranks: Sequence[int]) -> str:
    return _say(ranks, "has not", "have not")


def _say(ranks: Sequence[int], of_one: str, of_several: str) -> str:
    return f"{rank_words(ranks, MAX_NAMED)} {of_one if len(ranks) == 1 else of_several}"


def _age(told: Told | None, operation: Operation) -> float:
    """Seconds, by the rank's own clock; 0: nobody knows."""
    return max(0.001, (told.now - operation.created) / 1e9) if told is not None and told.now else 0.0


def _since(seconds: float) -> str:
    if not seconds:
        return ""
    return f" for {seconds:.0f} s" if seconds < 120 else f" for {seconds / 60:.0f} min"
