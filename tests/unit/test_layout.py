"""Which rank runs where, for any layout."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.layout import LOCAL_NAMES, MAX_RANKS, LayoutError, Place, Slots, parse_nodes, place_ranks

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(
    lambda counts: tuple((f"node{index}", count) for index, count in enumerate(counts))
)
ORDERS: st.SearchStrategy[Literal["block", "cyclic"]] = st.sampled_from(("block", "cyclic"))


def homes(places: tuple[Place, ...]) -> list[str]:
    return [place.node for place in places]


def test_block_fills_a_node_before_the_next_one() -> None:
    assert homes(place_ranks((("a", 2), ("b", 3)), "block")) == ["a", "a", "b", "b", "b"]


def test_cyclic_deals_one_rank_to_each_node_in_turn() -> None:
    assert homes(place_ranks((("a", 2), ("b", 3), ("c", 1)), "cyclic")) == ["a", "b", "c", "a", "b", "b"]


@given(COUNTS, ORDERS)
def test_every_rank_is_placed_once_and_in_order(
    counts: tuple[tuple[str, int], ...], order: Literal["block", "cyclic"]
) -> None:
    places = place_ranks(counts, order)
    assert [place.rank for place in places] == list(range(sum(count for _, count in counts)))


@given(COUNTS, ORDERS)
def test_every_node_gets_as_many_ranks_as_it_was_to_get(
    counts: tuple[tuple[str, int], ...], order: Literal["block", "cyclic"]
) -> None:
    places = place_ranks(counts, order)
    for group, (node, count) in enumerate(counts):
        here = [place for place in places if place.node == node]
        assert len(here) == count
        assert all(place.local_world_size == count for place in here)
        assert all(place.group_rank == group for place in here)


@given(COUNTS, ORDERS)
def test_local_ranks_are_dense_and_grow_with_the_rank(
    counts: tuple[tuple[str, int], ...], order: Literal["block", "cyclic"]
) -> None:
    places = place_ranks(counts, order)
    for node, count in counts:
        assert [place.local_rank for place in places if place.node == node] == list(range(count))


@given(COUNTS)
def test_block_keeps_the_ranks_of_a_node_together(counts: tuple[tuple[str, int], ...]) -> None:
    groups = [place.group_rank for place in place_ranks(counts, "block")]
    assert groups == sorted(groups)


@given(COUNTS)
def test_cyclic_goes_round_the_nodes_that_have_room(counts: tuple[tuple[str, int], ...]) -> None:
    turns = [(place.local_rank, place.group_rank) for place in place_ranks(counts, "cyclic")]
    assert turns == sorted(turns)


@given(st.integers(1, 9), ORDERS)
def test_one_node_is_the_same_in_either_order(count: int, order: Literal["block", "cyclic"]) -> None:
    places = place_ranks((("localhost", count),), order)
    assert [place.local_rank for place in places] == [place.rank for place in places]


# --- names of nodes --------------------------------------------------------------------------------------------------


def test_a_node_may_say_its_own_number_of_ranks() -> None:
    assert parse_nodes("localhost:4", 2) == (Slots(node="localhost", ranks=4),)
    assert parse_nodes("localhost", 2) == (Slots(node="localhost", ranks=2),)
    assert parse_nodes(("localhost",), "auto") == (Slots(node="localhost", ranks=None),)
    assert parse_nodes(" localhost:4 ", "auto") == (Slots(node="localhost", ranks=4),)


@pytest.mark.parametrize("name", sorted(LOCAL_NAMES))
def test_each_name_of_this_machine_is_a_node(name: str) -> None:
    assert parse_nodes(name, 3) == (Slots(node=name, ranks=3),)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((), "names no node"),
        ("", "can't be a node"),
        ("-v", "can't be a node"),
        ("a b", "can't be a node"),
        ("a;reboot", "can't be a node"),
        ("a\n", "not this machine"),
        ("localhost\x1b[2J", "can't be a node"),
        ("localhost:", "not a number of ranks"),
        ("localhost:0", "not a number of ranks"),
        ("localhost:-1", "not a number of ranks"),
        ("localhost:1.5", "not a number of ranks"),
        ("localhost:٣", "not a number of ranks"),
        (f"localhost:{MAX_RANKS + 1}", "not a number of ranks"),
        ("localhost:" + "9" * 5000, "not a number of ranks"),
        ("localhost:0000000001", "not a number of ranks"),
        ("gpu01", "not this machine"),
        (("localhost", "localhost:2"), "twice"),
        (("localhost", "127.0.0.1"), "this machine more than once"),
    ],
)
def test_nodes_that_can_not_be_are_refused_with_the_next_step(nodes: str | tuple[str, ...], words: str) -> None:
    with pytest.raises(LayoutError, match=words) as caught:
        parse_nodes(nodes, 2)
    assert caught.value.hint


@given(st.text(max_size=20) | st.lists(st.text(max_size=12), max_size=3).map(tuple))
def test_any_words_are_nodes_or_refused(nodes: str | tuple[str, ...]) -> None:
    try:
        slots = parse_nodes(nodes, "auto")
    except LayoutError:
        return
    assert [slot.node in LOCAL_NAMES for slot in slots] == [True]
