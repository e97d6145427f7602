"""Which rank runs where, for any layout."""

from typing import Literal

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import example, given
from hypothesis import strategies as st

from engine.core.plan import layout
from tests.support import from_table, rows

Order = Literal["block", "cyclic"]
Counts = tuple[tuple[str, int], ...]
COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(
    lambda counts: tuple((f"node{index}", count) for index, count in enumerate(counts))
)
ORDERS: st.SearchStrategy[Order] = st.sampled_from(("block", "cyclic"))


def homes(places: tuple[layout.Place, ...]) -> list[str]:
    return [place.node for place in places]


def test_block_fills_a_node_before_the_next_one() -> None:
    assert homes(layout.place_ranks((("a", 2), ("b", 3)), "block")) == ["a", "a", "b", "b", "b"]


def test_cyclic_deals_one_rank_to_each_node_in_turn() -> None:
    assert homes(layout.place_ranks((("a", 2), ("b", 3), ("c", 1)), "cyclic")) == ["a", "b", "c", "a", "b", "b"]


@given(COUNTS, ORDERS)
def test_every_rank_is_placed_once_and_in_order(counts: Counts, order: Order):
    places = layout.place_ranks(counts, order)
    assert [place.rank for place in places] == list(range(sum(count for _, count in counts)))


@given(COUNTS, ORDERS)
def test_every_node_gets_as_many_ranks_as_it_was_to_get(counts: Counts, order: Order) -> None:
    places = layout.place_ranks(counts, order)
    for group, (node, count) in enumerate(counts):
        here = [place for place in places if place.node == node]
        assert len(here) == count
        assert all(place.local_world_size == count for place in here)
        assert all(place.group_rank == group for place in here)


@given(COUNTS, ORDERS)
def test_local_ranks_are_dense_and_grow_with_the_rank(counts: Counts, order: Order) -> None:
    places = layout.place_ranks(counts, order)
    for node, count in counts:
        assert [place.local_rank for place in places if place.node == node] == list(range(count))


@given(COUNTS)
def test_block_keeps_the_ranks_of_a_node_together(counts: Counts) -> None:
    groups = [place.group_rank for place in layout.place_ranks(counts, "block")]
    assert groups == sorted(groups)


@given(COUNTS)
def test_cyclic_goes_round_the_nodes_that_have_room(counts: Counts) -> None:
    turns = [(place.local_rank, place.group_rank) for place in layout.place_ranks(counts, "cyclic")]
    assert turns == sorted(turns)


@given(st.integers(1, 9), ORDERS)
def test_one_node_is_the_same_in_either_order(count: int, order: Order) -> None:
    places = layout.place_ranks((("localhost", count),), order)
    assert [place.local_rank for place in places] == [place.rank for place in places]


# --- names of nodes --------------------------------------------------------------------------------------------------


def counted(
    nodes: str | tuple[str, ...], ranks_per_node: int | Literal["auto"] = "auto"
) -> list[tuple[str, int | None]]:
    return [(slot.node, slot.ranks) for slot in layout.parse_nodes(nodes, ranks_per_node)]


def test_a_node_may_say_its_own_number_of_ranks() -> None:
    assert layout.parse_nodes("localhost:4", 2) == (layout.Slots(node="localhost", ranks=4),)
    assert layout.parse_nodes("localhost", 2) == (layout.Slots(node="localhost", ranks=2),)
    assert layout.parse_nodes(("localhost",), "auto") == (layout.Slots(node="localhost", ranks=None),)
    assert layout.parse_nodes(" localhost:4 ", "auto") == (layout.Slots(node="localhost", ranks=4),)
    assert counted(("gpu01:8", "gpu02"), 4) == [("gpu01", 8), ("gpu02", 4)]


@pytest.mark.parametrize("name", sorted(layout.LOCAL_NAMES))
def test_each_name_of_this_machine_is_a_node(name: str) -> None:
    assert layout.parse_nodes(name, 3) == (layout.Slots(node=name, ranks=3),)


@pytest.mark.parametrize(
    ("word", "node", "ranks"),
    [
        *rows("unit/layout", "a_node_is_a_name_or_an_address_of_a_user_or_not"),
        (f"gpu01:{layout.MAX_RANKS}", "gpu01", layout.MAX_RANKS),
    ],
)
def test_a_node_is_a_name_or_an_address_of_a_user_or_not(word: str, node: str, ranks: int | None) -> None:
    assert counted(word) == [(node, ranks)]


@from_table
def test_a_folded_name_stands_for_several(nodes: str, names: list[str]) -> None:
    assert [name for name, _ in counted(nodes)] == names


def test_the_number_behind_a_folded_name_is_for_each_of_them() -> None:
    assert counted(("gpu[01-02]:8,login:2", "gpu03"), 4) == [("gpu01", 8), ("gpu02", 8), ("login", 2), ("gpu03", 4)]


@pytest.mark.slow
@given(
    st.lists(
        st.from_regex(r"[a-z]{1,3}[0-9]{1,4}(?:-r[0-9]{1,2})?", fullmatch=True), min_size=1, max_size=12, unique=True
    )
)
def test_what_clustershell_folds_is_unfolded(names: list[str]) -> None:
    folded = str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
    assert sorted(name for name, _ in counted(folded)) == sorted(names)


def test_a_group_is_taken_from_what_somebody_has_found_out() -> None:
    nodes = ("login:1", "@gpu")
    assert layout.groups_of(nodes) == ("@gpu",)
    assert layout.parse_nodes(nodes, 8, {"@gpu": ("gpu01", "gpu02")}) == (
        layout.Slots(node="login", ranks=1), layout.Slots(node="gpu01", ranks=8), layout.Slots(node="gpu02", ranks=8),
    )  # fmt: skip
    with pytest.raises(layout.LayoutError, match="'@gpu' is a group"):
        layout.parse_nodes(nodes, 8)


@from_table
def test_a_group_that_a_shell_would_read_is_refused(group: str) -> None:
    with pytest.raises(layout.LayoutError, match="is not a valid group name") as caught:
        layout.groups_of(group)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        *rows("unit/layout", "nodes_that_can_not_be_are_refused_with_the_next_step"),
        ("a" * 300, "is not a valid node name"),
        ("a" * 5000 + "[1-4096]", "is not a valid node name"),
        (f"localhost:{layout.MAX_RANKS + 1}", "not a number of ranks"),
        ("localhost:" + "9" * 5000, "not a number of ranks"),
    ],
)
def test_nodes_that_can_not_be_are_refused_with_the_next_step(nodes: str | tuple[str, ...], words: str) -> None:
    with pytest.raises(layout.LayoutError, match=words) as caught:
        layout.parse_nodes(nodes, 2)
    assert caught.value.hint
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_ranks_per_node_counts_towards_the_most_that_a_run_may_have() -> None:
    assert len(layout.parse_nodes("n[1-4096]", 16)) == layout.MAX_NODES
    with pytest.raises(layout.LayoutError, match="asks for 69632 ranks"):
        layout.parse_nodes("n[1-4096]", 17)


@pytest.mark.slow
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", [",", "[", "][", "[,", "[]", "[1]", "[1-2", "a[1-9],", "@,", "a:"], ids=lambda text: text.strip()
)
def test_a_megabyte_of_nonsense_is_refused_at_once(text: str) -> None:
    with pytest.raises(layout.LayoutError):
        layout.parse_nodes(text * ((1 << 20) // len(text)), "auto")


NODE_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:@-")
WORDS = st.text("gpu01[]-,:/@.f% ;\n", max_size=16) | st.text(max_size=12)


@given(WORDS | st.lists(WORDS, max_size=3).map(tuple))
@example("a\n")
def test_any_words_are_nodes_or_refused(nodes: str | tuple[str, ...]) -> None:
    try:
        slots = layout.parse_nodes(nodes, "auto", dict.fromkeys(layout.groups_of(nodes), ()))
    except layout.LayoutError:
        return
    for slot in slots:
        assert set(slot.node) <= NODE_CHARACTERS
        assert not slot.node.startswith("-")
        assert "@-" not in slot.node
    assert len({slot.node for slot in slots}) == len(slots)
