"""Who waits for whom: what each rank's process groups are at, compared.

It comes from torch's flight recorder, or in its layout: of a run that goes on from the ranks themselves, of nccl's that has timed out from
the files that torch has written. Collectives of a group over one backend are numbered alike on all its ranks. So of the oldest that is
under way anywhere, a rank whose newest has a smaller number has not called it, and of the others each can be told what it called.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from engine.core.run.state import rank_words
from engine.core.terminal_text import visible

PATIENCE = 1.0
"""Seconds that a collective of a live run is under way before it is told: ranks do not answer in the same instant."""

MOST_TOLD = 4
"""Sentences, one for each group that waits; the one that has waited longest comes first."""

MAX_NAMED = 8
"""Ranks that are named in one sentence; more are counted."""

MAX_TENSORS = 3
"""Tensors of one operation whose sizes are shown."""

MAX_WORDS = 200
"""Characters of what a rank contributes to a sentence."""

MAX_ENTRIES = 10_000
"""Newest operations of one rank that are looked at; torch keeps 2,000, unless the profile says otherwise."""

MAX_LISTED = 1 << 20
"""Characters that a trace may take to list its groups and their ranks."""

_NAMELESS = ("", "undefined")
"""What torch has for the description of a group that was given none."""

_TYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Bool": "bool",
}
"""Names of types in C++, and those that a script has for them."""

_UNEVEN = re.compile(r"all_?to_?all|coalesced|oop|^(?:gather|scatter|barrier)")
"""Operations whose tensors may differ from rank to rank."""

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

Spans = list[tuple[Number, Number, Number]]

Key = tuple[str, str]
"""A group's name, and a backend of it."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One that a rank has called."""

    number: int
    """Of a collective: its number in the group, counted from 1."""
    name: str
    """Empty: nobody knows."""
    tensors: str
    """`4 x float32`"""
    is_under_way: bool
    is_transfer: bool
    """Whether it is between two ranks."""
    created: int
    """Nanoseconds since 1970, by the clock of the rank's node."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group, as one of its ranks sees it."""

    title: str
    ranks: tuple[range, ...]
    """Empty: all."""
    operations: tuple[Operation, ...]
    """The newest, the oldest first."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank tells."""

    groups: dict[Key, Group]
    """Those with operations, over each of their backends."""
    is_evicted: bool
    """Whether it has forgotten old operations, so that a group of which it says nothing may have had some."""
    now: int
    """When it was told, like `Operation.created`; 0: nobody knows."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that wait in an operation."""

    sentence: str
    late: tuple[int, ...]
    """Ranks that have not called it, where that is known."""


# --- what ranks tell -------------------------------------------------------------------------------------------------


class _Entry(msgspec.Struct):
    """The flight recorder's (torch 2.6 to 2.13)."""

    process_group: tuple[str, str]
    collective_seq_id: Number
    profiling_name: str
    pg_id: Number = 0
    is_p2p: bool = False
    retired: bool = False
    state: str = ""
    time_created_ns: Number = 0
    record_id: Number = 0
    input_sizes: Any = []  # looked at where they are shown: what is unpickled may be one list many times over
    input_dtypes: Any = []


class _Live(msgspec.Struct):
    """What `rankdeck/_collectives.py` writes."""

    now: Number
    evicted: bool
    groups: dict[str, Spans]
    entries: list[_Entry]


class _Config(msgspec.Struct):
    ranks: str = ""


class _Trace(msgspec.Struct):
    """What torch writes when a collective of nccl has timed out."""

    entries: list[Any] = []
    pg_config: dict[str, _Config] = {}


def read_told(text: str) -> Told | None:
    """What a rank has answered: the last line counts. None where it says nothing that can be understood."""
    lines = text.splitlines()
    try:
        live = msgspec.json.decode(lines[-1] if lines else "", type=_Live)
        ranks = {name: tuple(range(*span) for span in spans) for name, spans in live.groups.items()}
        groups = _groups(live.entries, ranks)
    except (ValueError, RecursionError):
        return None
    return Told(groups=groups, is_evicted=live.evicted, now=live.now)


def read_trace(value: object) -> Told:
    """What torch has written of one rank, unpickled.

    Raises:
        ValueError: it is something else.
    """
    trace = msgspec.convert(value, _Trace)
    if sum(len(name) + len(config.ranks) for name, config in trace.pg_config.items()) > MAX_LISTED:
        raise ValueError("it lists more groups and ranks than can be")
    ranks = {name: _listed(config.ranks) for name, config in trace.pg_config.items()}
    entries = msgspec.convert(trace.entries[-MAX_ENTRIES:], list[_Entry])
    is_evicted = bool(entries) and entries[0].record_id > 0
    return Told(groups=_groups(entries, ranks), is_evicted=is_evicted, now=0)


def _listed(ranks: str) -> tuple[range, ...]:
    """`[0, 1, 5]`; torch has `[]` for all where it knows no better."""
    return tuple(range(int(rank), int(rank) + 1) for rank in re.findall(r"\d{1,9}", ranks))


def _groups(entries: Sequence[_Entry], ranks: Mapping[str, tuple[range, ...]]) -> dict[Key, Group]:
    """By name and backend, over each of which a group has numbers of its own. A name may be given again when its group is gone: the
    newest group has it.
    """
    newest: dict[Key, int] = {}
    for entry in entries:
        key = _key(entry)
        newest[key] = max(newest.get(key, 0), entry.pg_id)
    of_group: dict[Key, list[_Entry]] = {}
    for entry in entries:
        key = _key(entry)
        if entry.pg_id == newest[key]:
            of_group.setdefault(key, []).append(entry)
    return {
        (name, backend): Group(
            title=_title(name, own),
            ranks=ranks.get(name, ()),
            operations=tuple(map(_operation, own)),
        )
        for (name, backend), own in of_group.items()
    }


def _title(name: str, entries: Sequence[_Entry]) -> str:
    descriptions = (entry.process_group[1] for entry in entries)
    described = next((text for text in descriptions if text not in _NAMELESS), "")
    return _cut(described) if described else f"group {_cut(name)}"


def _key(entry: _Entry) -> Key:
    backend, _, _ = _taken_apart(entry)
    return entry.process_group[0], backend


def _taken_apart(entry: _Entry) -> tuple[str, str, str]:
    """Backend, name and tensors. rankdeck's own backends say the last two in one, and not who they are."""
    called, _, tensors = entry.profiling_name[: 4 * MAX_WORDS].partition("(")
    backend, _, name = called.rpartition(":")
    return backend, name, tensors.removesuffix(")")


def _operation(entry: _Entry) -> Operation:
    _, name, tensors = _taken_apart(entry)
    return Operation(
        number=entry.collective_seq_id,
        name=_cut(name),
        tensors=_cut(tensors.replace("torch.", "") or _tensors(entry)),
        is_under_way=not entry.retired and entry.state != "completed",
        is_transfer=entry.is_p2p,
        created=entry.time_created_ns,
    )


def _tensors(entry: _Entry) -> str:
    sizes = msgspec.convert(
        [_first(size, MAX_WORDS) for size in _first(entry.input_sizes, MAX_TENSORS)], list[list[Number]]
    )
    kinds = msgspec.convert(_first(entry.input_dtypes, MAX_TENSORS), list[str])
    shown = [
        " x ".join([*map(str, size), _TYPES.get(kind, kind[:MAX_WORDS].lower())])
        for size, kind in zip(sizes, kinds, strict=False)
    ]
    more = len(entry.input_sizes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if shown and more > 0 else "")


def _first(value: object, most: int) -> list[Any]:
    """A part of what should be a list, so that no more of it is copied."""
    if not isinstance(value, list):
        raise ValueError("what should be a list is none")
    return value[:most]


def _cut(text: str) -> str:
    """What may stand in a sentence: one line, short, with nothing in it that a terminal or an encoder takes amiss."""
    shown = visible(text[: MAX_WORDS + 1])
    return shown if len(shown) <= MAX_WORDS else shown[: MAX_WORDS - 1] + "…"


# --- compared --------------------------------------------------------------------------------------------------------


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
        over = f" over {_cut(backend)}" if backends[name] > 1 else ""
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
