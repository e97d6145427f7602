"""Reads a rank's records about its process groups: torch's flight recorder, or rankdeck's own records in the same layout. Ranks of an
active run send their records; after a timeout of nccl, torch writes them to files."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from engine.core.numbers import age
from engine.core.terminal_text import visible
from engine.core.words import limited

MAX_TENSORS = 3  # tensors of one operation whose sizes are shown
MAX_WORDS = 200  # longest text from a rank in a sentence, in characters
MAX_ENTRIES = 10_000  # newest operations of one rank that are read; torch keeps 2,000 by default
MAX_LISTED = 1 << 20  # most characters for the names and ranks of all groups of a trace
_NAMELESS = ("", "undefined")  # torch's description of a group without one

_TYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8",
          "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool"}  # fmt: skip
"""Types by their name in C++, as Python names them."""

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

Spans = list[tuple[Number, Number, Number]]

Key = tuple[str, str]  # name of a group and one of its backends


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that a rank has called."""

    number: int  # of a collective: its number in the group, counted from 1
    name: str  # empty: unknown
    tensors: str  # `4 x float32`
    is_under_way: bool
    is_transfer: bool  # whether it is a send or a receive
    created: int  # nanoseconds since 1970, by the clock of the rank's node


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group, as one of its ranks sees it."""

    title: str
    ranks: tuple[range, ...]  # empty: all
    operations: tuple[Operation, ...]  # the newest operations, oldest first


class Lock(msgspec.Struct, frozen=True, array_like=True):
    """A lock file that a rank waits for."""

    path: str
    age: float  # seconds
    holder: Number  # pid; 0: no process of the same user holds it

    @property
    def words(self) -> str:
        """`/home/a/.cache/torch_extensions/x/lock is 3 h old, and no process holds it`."""
        who = f"process {self.holder} holds it" if self.holder else "no process holds it"
        return f"{limited(visible(self.path), MAX_WORDS)} is {age(self.age)} old, and {who}"


class RankRecord(msgspec.Struct, frozen=True, kw_only=True):
    groups: dict[Key, Group]  # groups with operations, for each of their backends
    is_evicted: bool  # whether old operations were dropped: a group without operations may have had some
    now: int  # when it was recorded, like `Operation.created`; 0: unknown
    lock: Lock | None = None


class _Entry(msgspec.Struct):
    """An entry of the flight recorder (torch 2.6 to 2.13)."""

    process_group: tuple[str, str]
    collective_seq_id: Number
    profiling_name: str
    pg_id: Number = 0
    is_p2p: bool = False
    retired: bool = False
    state: str = ""
    time_created_ns: Number = 0
    record_id: Number = 0
    input_sizes: Any = []  # converted only where shown: an unpickled list may contain the same list many times
    input_dtypes: Any = []


class _Live(msgspec.Struct):
    """What `rankdeck/_collectives.py` writes."""

    now: Number
    evicted: bool
    groups: dict[str, Spans]
    entries: list[_Entry]
    lock: Lock | None = None


class _Config(msgspec.Struct):
    ranks: str = ""


class _Trace(msgspec.Struct):
    """The record that torch writes when a collective of nccl has timed out."""

    entries: list[Any] = []
    pg_config: dict[str, _Config] = {}


def read_record(text: str) -> RankRecord | None:
    """The record in a rank's answer, which is its last line; None if that is not valid."""
    lines = text.splitlines()
    try:
        live = msgspec.json.decode(lines[-1] if lines else "", type=_Live)
        ranks = {name: tuple(range(*span) for span in spans) for name, spans in live.groups.items()}
        groups = _groups(live.entries, ranks)
    except (ValueError, RecursionError):
        return None
    return RankRecord(groups=groups, is_evicted=live.evicted, now=live.now, lock=live.lock)


def read_trace(value: object) -> RankRecord:
    """The record in an unpickled file of torch. Raises ValueError if it is not valid."""
    trace = msgspec.convert(value, _Trace)
    if sum(len(name) + len(config.ranks) for name, config in trace.pg_config.items()) > MAX_LISTED:
        raise ValueError("it lists too many groups and ranks")
    ranks = {
        name: tuple(range(int(rank), int(rank) + 1) for rank in re.findall(r"\d{1,9}", config.ranks))
        for name, config in trace.pg_config.items()
    }
    entries = msgspec.convert(trace.entries[-MAX_ENTRIES:], list[_Entry])
    is_evicted = bool(entries) and entries[0].record_id > 0
    return RankRecord(groups=_groups(entries, ranks), is_evicted=is_evicted, now=0)


def _groups(entries: Sequence[_Entry], ranks: Mapping[str, tuple[range, ...]]) -> dict[Key, Group]:
    """Groups by name and backend; each backend numbers its operations separately. If a name was used again, the newest group counts."""
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
            title=_title(name, own), ranks=ranks.get(name, ()), operations=tuple(map(_operation, own))
        )
        for (name, backend), own in of_group.items()
    }


def _title(name: str, entries: Sequence[_Entry]) -> str:
    descriptions = (entry.process_group[1] for entry in entries)
    described = next((text for text in descriptions if text not in _NAMELESS), "")
    return cut(described) if described else f"group {cut(name)}"


def _key(entry: _Entry) -> Key:
    backend, _, _ = _taken_apart(entry)
    return entry.process_group[0], backend


def _taken_apart(entry: _Entry) -> tuple[str, str, str]:
    """Backend, name and tensors. rankdeck's own backends record name and tensors together, without the backend."""
    called, _, tensors = entry.profiling_name[: 4 * MAX_WORDS].partition("(")
    backend, _, name = called.rpartition(":")
    return backend, name, tensors.removesuffix(")")


def _operation(entry: _Entry) -> Operation:
    _, name, tensors = _taken_apart(entry)
    return Operation(
        number=entry.collective_seq_id,
        name=cut(name),
        tensors=cut(tensors.replace("torch.", "") or _tensors(entry)),
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
    """The beginning of a list, so that a long one is not copied."""
    if not isinstance(value, list):
        raise ValueError("a value is not a list")
    return value[:most]


def cut(text: str) -> str:
    """A short, printable form of a text, for a sentence."""
    return limited(visible(text[: MAX_WORDS + 1]), MAX_WORDS)
