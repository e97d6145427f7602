"""Reads the nodes of a layout and their numbers of ranks, and places ranks on nodes. Names of nodes become arguments of ssh and appear in
terminals, and profiles are shared, so only harmless characters are allowed."""

import ipaddress
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from engine.core.patterns import late

MAX_RANKS = 65_536  # far above any real run, to catch typing errors
MAX_NODES = 4_096  # The same for nodes. Ranges are counted before they are expanded.
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})  # they always mean this machine
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253}[A-Za-z0-9_])?"
_NODE_NAME = late(rf"(?:{_NAME}@)?{_NAME}\Z")
"""A node's name: no option (leading dash), and no characters with a meaning for shells or terminals."""
_IPV6 = late(rf"((?:{_NAME}@)?)([0-9A-Fa-f:.]+)\Z")
_IPV6_WITH_COUNT = late(rf"((?:{_NAME}@)?)\[([0-9A-Fa-f:.]+)\](?::(.*))?\Z", re.DOTALL)
_GROUP = late(rf"@(?:{_NAME}:)?{_NAME}\Z")
"""A node group of ClusterShell, `@gpu` or `@source:gpu`. ClusterShell puts its name into a shell command."""

_LONGEST_NAME = 511  # Characters of user, host and `@`. Longer names are refused before a range is expanded.
_COUNT = late(r"[1-9][0-9]{0,4}\Z")
_WORD = late(r"((?:[^,\[]|\[[^\]]*\]?)*),")
_FOLD = late(r"\[([0-9,/-]*)\]")
_RANGE = late(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,9}))?)?\Z")

_EXAMPLES = 'for example: "gpu01", "gpu[01-16]:8" or "me@10.0.0.7"'


class Slots(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a layout and its number of ranks; None: as many as it has devices."""

    node: str
    ranks: int | None


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one rank. `group_rank` is the node's index, as in torchrun."""

    rank: int
    node: str
    local_rank: int
    local_world_size: int
    group_rank: int


class LayoutError(ValueError):
    """Invalid nodes of a layout: the reason, and the next step as `hint`."""

    def __init__(self, reason: str, *, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def parse_nodes(
    nodes: str | Sequence[str], ranks_per_node: int | Literal["auto"], groups: Mapping[str, Iterable[str]] | None = None
) -> tuple[Slots, ...]:
    """Reads `layout.nodes`: `"localhost"`, `"gpu[01-16]:8,login"`, `"me@gpu01"`, `"[fe80::2]:4"` or a list of such words. `ranks_per_node`:
    for nodes without a count. `groups`: the nodes of each group in `groups_of(nodes)`. Raises LayoutError: a name or a count is invalid, a
    group is missing in `groups`, or nodes are not compatible (see `complete`)."""
    words = _words(nodes)
    if not words:
        raise LayoutError("names no node", hint='for example: nodes = "localhost"')
    slots: list[Slots] = []
    for word in words:
        if word.startswith("@"):
            if word not in (groups or {}):
                raise LayoutError(f"{quoted(word)} is a group, which is not allowed here", hint=_EXAMPLES)
            names = (groups or {})[word]
        else:
            names = _unfolded(word)
        slots.extend(parse_node(name) for name in names)
        _refuse_too_many(len(slots))
    return complete(slots, ranks_per_node)


def groups_of(nodes: str | Sequence[str]) -> tuple[str, ...]:
    """The node groups among the words of `layout.nodes`: `@gpu` or `@source:gpu`. Raises LayoutError for an invalid name."""
    groups = tuple(word for word in _words(nodes) if word.startswith("@"))
    for group in groups:
        if not _GROUP.match(group):
            hint = 'for example: "@gpu" or "@source:gpu"; its ranks are layout.ranks_per_node'
            raise LayoutError(f"{quoted(group)} is not a valid group name", hint=hint)
    return groups


def parse_node(word: str) -> Slots:
    """Reads one node with or without a number of ranks: `gpu01:8`, `me@gpu01`, `10.0.0.7:8`, `[fe80::2]:8`. Raises LayoutError."""
    count: str | None
    if matched := _IPV6_WITH_COUNT.match(word):
        user, address, count = matched.groups()
        node = user + address
    elif word.count(":") == 1:
        node, _, count = word.partition(":")
    else:
        node, count = word, None
    if not _NODE_NAME.match(node) and not _is_ipv6(node):
        raise LayoutError(f"{quoted(word)} is not a valid node name", hint=_EXAMPLES)
    if host_of(node).isdigit():  # a resolver reads 4 as the address 0.0.0.4
        raise LayoutError(f"{quoted(word)} is a number, not a node", hint='ranks of this machine: "localhost:4"')
    ranks = None if count is None else count_of(count)
    if count is not None and ranks is None:
        hint = f'1 to {MAX_RANKS}, for example: "{word.removesuffix(count)}4"'
        raise LayoutError(f"{quoted(word)}: {quoted(count)} is not a number of ranks", hint=hint)
    return Slots(node=node, ranks=ranks)


def count_of(text: str) -> int | None:
    """A number of ranks; None: the text is not one."""
    return int(text) if _COUNT.match(text) and int(text) <= MAX_RANKS else None


def complete(slots: Iterable[Slots], ranks_per_node: int | Literal["auto"]) -> tuple[Slots, ...]:
    """Fills in missing counts, and checks the nodes of a layout together. Raises LayoutError: a node appears twice, this machine appears
    by a local name together with others, or there are too many nodes."""
    default = None if ranks_per_node == "auto" else ranks_per_node
    found = tuple(slot if slot.ranks else Slots(node=slot.node, ranks=default) for slot in slots)
    _refuse_too_many(len(found))
    seen: set[str] = set()
    for slot in found:
        host = host_of(slot.node)
        if host in seen:
            raise LayoutError(f"names {host!r} twice", hint=f'name it once, with all its ranks: "{host}:8"')
        seen.add(host)
    if local := seen & LOCAL_NAMES:
        if len(local) > 1:
            raise LayoutError("names this machine more than once", hint='for example: nodes = "localhost"')
        if len(seen) > 1:
            name = min(local)
            hint = "name this machine by its host name or its address"
            raise LayoutError(f"names {name!r} together with other nodes, which can't reach it by that name", hint=hint)
    if (ranks := sum(slot.ranks or 0 for slot in found)) > MAX_RANKS:
        raise LayoutError(f"asks for {ranks} ranks", hint=f"a run has {MAX_RANKS} at most")
    return found


def host_of(node: str) -> str:
    """A node's name without its `user@`."""
    return node.rpartition("@")[2]


def _words(nodes: str | Sequence[str]) -> tuple[str, ...]:
    """Splits texts at every comma outside of brackets."""
    texts = [nodes] if isinstance(nodes, str) else nodes
    return tuple(matched[1].strip() for text in texts for matched in _WORD.finditer(f"{text},"))


def _unfolded(word: str) -> list[str]:
    """Expands a folded name, in the order of its numbers: `gpu[01-02]:8` is `gpu01:8` and `gpu02:8`. Only ClusterShell's ranges are used.
    Its NodeSet expands `rack1[1-12]` to the 102 names from `rack11` to `rack112` (ClusterShell 1.10.1), can't count names without
    expanding them, and takes ten times as long to import."""
    text = _FOLD.split(word)
    if len(text) == 1:
        return [word]
    from ClusterShell.RangeSet import RangeSet, RangeSetException  # takes milliseconds, and few layouts need it

    ranges = text[1::2]
    if sum(map(len, text[::2])) + len(ranges) > _LONGEST_NAME:
        raise LayoutError(f"{quoted(word)} is not a valid node name", hint=_EXAMPLES)
    size = math.prod(_size(word, each) for each in ranges)
    _refuse_too_many(size)
    try:
        numbers = [list(RangeSet(each).striter()) for each in ranges]
    except RangeSetException as error:
        raise LayoutError(f"{quoted(word)}: {str(error).replace(' : ', ': ')}", hint=_EXAMPLES) from None
    if math.prod(map(len, numbers)) != size:
        raise LayoutError(f"{quoted(word)} names a node twice", hint="name each node once")
    return [
        text[0] + "".join(number + rest for number, rest in zip(chosen, text[2::2], strict=True))
        for chosen in itertools.product(*numbers)
    ]


def _size(word: str, ranges: str) -> int:
    """How many numbers `01-16,20-40/2` has, without expanding it."""
    size = 0
    for each in ranges.split(","):
        matched = _RANGE.match(each)
        if matched is None:
            raise LayoutError(f"{quoted(word)}: {quoted(each)} is not a range of numbers", hint=_EXAMPLES)
        begin, end, step = int(matched[1]), int(matched[2] or matched[1]), int(matched[3] or 1)
        size += max(0, end - begin) // max(1, step) + 1
    return size


def _refuse_too_many(nodes: int) -> None:
    if nodes > MAX_NODES:
        raise LayoutError(f"names {nodes} nodes", hint=f"a run has {MAX_NODES} at most")


def _is_ipv6(node: str) -> bool:
    matched = _IPV6.match(node)
    try:
        return matched is not None and ipaddress.IPv6Address(matched[2]) is not None
    except ValueError:
        return False


def quoted(word: str) -> str:
    """A word in quotes for a message: short and printable."""
    return repr(word if len(word) <= 60 else f"{word[:57]}…")


def place_ranks(counts: tuple[tuple[str, int], ...], order: Literal["block", "cyclic"]) -> tuple[Place, ...]:
    """Places ranks on nodes. `order`: `block` fills a node before the next one; `cyclic` gives one rank to each node in turn. Returns
    every rank's place, by rank. On each node, local ranks increase with ranks."""
    if order == "block":
        groups = [group for group, (_, count) in enumerate(counts) for _ in range(count)]
    else:
        rounds = max(count for _, count in counts)
        groups = [group for turn in range(rounds) for group, (_, count) in enumerate(counts) if turn < count]
    taken = [0] * len(counts)
    places: list[Place] = []
    for rank, group in enumerate(groups):
        node, count = counts[group]
        places.append(Place(rank=rank, node=node, local_rank=taken[group], local_world_size=count, group_rank=group))
        taken[group] += 1
    return tuple(places)
