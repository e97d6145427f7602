"""Layout to rank placement: what may name a node, how many ranks it takes, and which rank runs on which node.

Names end up in argv of ssh and in a terminal, and profiles are shared, so a name is refused unless every character of it is
harmless.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

MAX_RANKS = 65_536
"""Far above any run; a profile that asks for more has a typing error."""

MAX_NODES = 4_096
"""The same for nodes. Ranges are counted before they are expanded: a typing error in one costs nothing."""

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names that always mean this machine, whatever a resolver says."""

_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253}[A-Za-z0-9_])?"
_NODE_NAME = re.compile(rf"(?:{_NAME}@)?{_NAME}\Z")
"""What may name a node: never an option (no leading dash) and nothing that a shell or a terminal would read."""
_IPV6 = re.compile(rf"((?:{_NAME}@)?)([0-9A-Fa-f:.]+)\Z")
_IPV6_WITH_COUNT = re.compile(rf"((?:{_NAME}@)?)\[([0-9A-Fa-f:.]+)\](?::(.*))?\Z", re.DOTALL)
_GROUP = re.compile(rf"@(?:{_NAME}:)?{_NAME}\Z")
"""A group of ClusterShell's, `@gpu` or `@source:gpu`. ClusterShell puts its name into a shell command."""

_LONGEST_NAME = 511
"""Characters of two names and what joins them: no name is made, thousands of times, to be found too long."""

_COUNT = re.compile(r"[1-9][0-9]{0,4}\Z")
_WORD = re.compile(r"((?:[^,\[]|\[[^\]]*\]?)*),")
_FOLD = re.compile(r"\[([0-9,/-]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,9}))?)?\Z")

_EXAMPLES = 'for example: "gpu01", "gpu[01-16]:8" or "me@10.0.0.7"'


class Slots(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a layout and how many ranks it was asked to take; None: as many as it has devices."""

    node: str
    ranks: int | None


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank runs. `group_rank` is the node's index, as torchrun counts."""

    rank: int
    node: str
    local_rank: int
    local_world_size: int
    group_rank: int


class LayoutError(ValueError):
    """Nodes that can't be a layout: the reason, and the next step as `hint`."""

    def __init__(self, reason: str, *, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def parse_nodes(
    nodes: str | Sequence[str], ranks_per_node: int | Literal["auto"], groups: Mapping[str, Iterable[str]] | None = None
) -> tuple[Slots, ...]:
    """Reads `layout.nodes`: `"localhost"`, `"gpu[01-16]:8,login"`, `"me@gpu01"`, `"[fe80::2]:4"` or a list of such words.

    Args:
        nodes: one word or several.
        ranks_per_node: for nodes that say no count of their own.
        groups: the nodes of each of `groups_of(nodes)`.

    Raises:
        LayoutError: an invalid node name, an invalid count, a group that is not in `groups`, or nodes that
            can't be together (see `complete`).
    """
    words = _words(nodes)
    if not words:
        raise LayoutError("names no node", hint='for example: nodes = "localhost"')
    slots: list[Slots] = []
    for word in words:
        if word.startswith("@"):
            if word not in (groups or {}):
                raise LayoutError(f"{quoted(word)} is a group, and there is none here", hint=_EXAMPLES)
            names = (groups or {})[word]
        else:
            names = _unfolded(word)
        slots.extend(parse_node(name) for name in names)
        _refuse_too_many(len(slots))
    return complete(slots, ranks_per_node)


def groups_of(nodes: str | Sequence[str]) -> tuple[str, ...]:
    """The node groups among the words of `layout.nodes`: `@gpu` or `@source:gpu`.

    Raises:
        LayoutError: a group that has a character in its name which no group has.
    """
    groups = tuple(word for word in _words(nodes) if word.startswith("@"))
    for group in groups:
        if not _GROUP.match(group):
            raise LayoutError(
                f"{quoted(group)} can't be a group of nodes",
                hint='for example: "@gpu" or "@source:gpu"; its ranks are layout.ranks_per_node',
            )
    return groups


def parse_node(word: str) -> Slots:
    """Reads one node with or without a number of ranks: `gpu01:8`, `me@gpu01`, `10.0.0.7:8`, `fe80::2`, `[fe80::2]:8`.

    Raises:
        LayoutError: an invalid node name, or an invalid count.
    """
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
    if host_of(node).isdigit():  # a resolver takes 4 for the address 0.0.0.4
        raise LayoutError(f"{quoted(word)} is a number, not a node", hint='ranks of this machine: "localhost:4"')
    ranks = None if count is None else count_of(count)
    if count is not None and ranks is None:
        raise LayoutError(
            f"{quoted(word)}: {quoted(count)} is not a number of ranks",
            hint=f'1 to {MAX_RANKS}, for example: "{word.removesuffix(count)}4"',
        )
    return Slots(node=node, ranks=ranks)


def count_of(text: str) -> int | None:
    """A number of ranks; None: the text is not one."""
    return int(text) if _COUNT.match(text) and int(text) <= MAX_RANKS else None


def complete(slots: Iterable[Slots], ranks_per_node: int | Literal["auto"]) -> tuple[Slots, ...]:
    """The nodes of a layout, checked together.

    Args:
        slots: in order, from wherever.
        ranks_per_node: for nodes that have no number yet.

    Raises:
        LayoutError: a node is there twice, this machine together with others, or there are too many of them.
    """
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
            raise LayoutError(
                f"names {name!r} together with other nodes, which can't reach it by that name",
                hint="name this machine by its host name or its address",
            )
    if (ranks := sum(slot.ranks or 0 for slot in found)) > MAX_RANKS:
        raise LayoutError(f"asks for {ranks} ranks", hint=f"a run has {MAX_RANKS} at most")
    return found


def host_of(node: str) -> str:
    """A node's name without its `user@`."""
    return node.rpartition("@")[2]


def _words(nodes: str | Sequence[str]) -> tuple[str, ...]:
    """Takes texts apart at every comma that is not in brackets."""
    texts = [nodes] if isinstance(nodes, str) else nodes
    return tuple(matched[1].strip() for text in texts for matched in _WORD.finditer(f"{text},"))


def _unfolded(word: str) -> list[str]:
    """Every name that a folded one stands for, in the order of its numbers: `gpu[01-02]:8` is `gpu01:8` and `gpu02:8`.

    ClusterShell reads the ranges only. Its NodeSet takes `rack1[1-12]` for the 102 names from `rack11` to `rack112`
    (ClusterShell 1.10.1), makes all of them before it can be asked how many there are, and takes ten times as long to import.
    """
    text = _FOLD.split(word)
    if len(text) == 1:
        return [word]
    from ClusterShell.RangeSet import (
        RangeSet,
        RangeSetException,
    )  # milliseconds, for a first screen that has few such names

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
    """How many numbers are in `01-16,20-40/2`, told without making them."""
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
    """As much of a word as a message can hold, with nothing in it that a terminal would read."""
    return repr(word if len(word) <= 60 else f"{word[:57]}…")


def place_ranks(counts: tuple[tuple[str, int], ...], order: Literal["block", "cyclic"]) -> tuple[Place, ...]:
    """Numbers the ranks of a gang.

    Args:
        counts: nodes in order, each with its number of ranks (at least 1).
        order: `block` fills a node before the next one; `cyclic` deals one rank to each node in turn.

    Returns:
        Every rank's place, by rank. Local ranks of a node grow with its ranks.
    """
    if order == "block":
        homes = [group for group, (_, count) in enumerate(counts) for _ in range(count)]
    else:
        rounds = max(count for _, count in counts)
        homes = [group for turn in range(rounds) for group, (_, count) in enumerate(counts) if turn < count]
    taken = [0] * len(counts)
    places: list[Place] = []
    for rank, group in enumerate(homes):
        node, count = counts[group]
        places.append(Place(rank=rank, node=node, local_rank=taken[group], local_world_size=count, group_rank=group))
        taken[group] += 1
    return tuple(places)
