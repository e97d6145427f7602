"""Layout to rank placement: which rank runs on which node, with which local rank."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

MAX_RANKS = 65_536
"""Far above any run; a profile that asks for more has a typing error."""

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names that always mean this machine, whatever a resolver says."""

_NODE_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:-]*[A-Za-z0-9_])?\Z")
"""What may name a node: never an option (no leading dash) and nothing that a shell or a terminal would read."""


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


def parse_nodes(nodes: str | tuple[str, ...], ranks_per_node: int | Literal["auto"]) -> tuple[Slots, ...]:
    """Reads `layout.nodes`: `"localhost"`, `"localhost:4"` or a list of such words.

    Args:
        nodes: one word or several.
        ranks_per_node: for nodes that say no count of their own.

    Raises:
        LayoutError: a name that can't be a node's, a count that is no count, a node named twice.
    """
    words = [nodes] if isinstance(nodes, str) else list(nodes)
    if not words:
        raise LayoutError("names no node", hint='for example: nodes = "localhost"')
    default = None if ranks_per_node == "auto" else ranks_per_node
    slots: list[Slots] = []
    for word in words:
        name, colon, count = word.strip().partition(":") if word.count(":") == 1 else (word.strip(), "", "")
        if name not in LOCAL_NAMES and not _NODE_NAME.match(name):
            raise LayoutError(f"{word!r} can't be a node", hint='for example: "localhost" or "localhost:4"')
        if colon and not (count.isascii() and count.isdigit() and 1 <= int(count[:9]) <= MAX_RANKS):
            raise LayoutError(f"{word!r}: {count!r} is not a number of ranks", hint=f'for example: "{name}:4"')
        if name not in LOCAL_NAMES:
            raise LayoutError(
                f"{name!r} is not this machine",
                hint='this version starts ranks on this machine only: nodes = "localhost"',
            )
        if any(slot.node == name for slot in slots):
            raise LayoutError(f"names {name!r} twice", hint=f'give its ranks once: "{name}:8"')
        slots.append(Slots(node=name, ranks=int(count) if colon else default))
    if len(slots) > 1:
        raise LayoutError("names this machine more than once", hint='for example: nodes = "localhost"')
    return tuple(slots)


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
