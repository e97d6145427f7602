"""Hostfiles as Open MPI, MPICH, DeepSpeed and PBS write them."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.core.errors import ProfileError
from engine.core.plan.hostfile import parse_hostfile
from engine.core.plan.layout import MAX_RANKS
from tests.support import entries, rows


def hosts(text: str) -> list[tuple[str, int | None]]:
    return [(slot.node, slot.ranks) for slot in parse_hostfile(text, "hosts.txt")]


def refused(text: str) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        parse_hostfile(text, "hosts.txt")
    return caught.value


def test_open_mpis_spelling() -> None:
    text = entries("unit/hostfile", "open_mpis_spelling")
    assert hosts(text) == [
        ("node01", 10), ("node13", 5), ("node15", 2), ("me@10.0.0.7", 4), ("node16", None), ("node17", None),
    ]  # fmt: skip


def test_mpichs_spelling() -> None:
    text = "hosta:2\nhostb:4 binding=user:0,1,2,3\nhostc\n[fe80::2]:8\n"
    assert hosts(text) == [("hosta", 2), ("hostb", 4), ("hostc", None), ("fe80::2", 8)]


def test_deepspeeds_spelling() -> None:
    assert hosts("worker-1 slots=4\nworker-2 slots=4\n") == [("worker-1", 4), ("worker-2", 4)]


def test_each_line_is_a_rank_where_a_host_has_several() -> None:
    assert hosts("a\na\nb\na\nb\nc\n") == [("a", 3), ("b", 2), ("c", 1)]
    assert hosts("a\na\nb slots=4\n") == [("a", 2), ("b", 4)]


def test_a_host_that_is_there_once_says_no_number() -> None:
    assert hosts("a\nb\n") == [("a", None), ("b", None)]


@pytest.mark.parametrize("text", ["a slots=2\r\nb\r\n", "a slots=2\nb", "\n\n  a\tslots=2  \n#\nb#c\n"])
def test_line_ends_and_blanks_make_no_difference(text: str) -> None:
    assert hosts(text) == [("a", 2), ("b", None)]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        *rows("unit/hostfile", "anything_else_is_refused_with_file_line_and_next_step"),
        (f"a slots={MAX_RANKS + 1}\n", 1, "has no valid number of ranks"),
        ("a slots=" + "9" * 5000 + "\n", 1, "has no valid number of ranks"),
        ("a" * (1 << 20), 1, "is not a valid node name"),
    ],
)
def test_anything_else_is_refused_with_file_line_and_next_step(text: str, line: int | None, words: str) -> None:
    error = refused(text)
    assert (error.file, error.line) == ("hosts.txt", line)
    assert error.message.startswith(f"hosts.txt:{line}: " if line else "hosts.txt: ")
    assert words in error.message
    assert error.message.isprintable()
    assert len(error.message) < 200
    assert error.hint


@pytest.mark.slow
@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", [" ", "a =", "=", "a\n", "a x=", "#"], ids=repr)
def test_a_megabyte_of_nonsense_is_read_or_refused_at_once(text: str) -> None:
    with contextlib.suppress(ProfileError):
        parse_hostfile("h" + text * ((1 << 20) // len(text)), "hosts.txt")


LINES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "", ":3", " slots=2", " slots=2 max_slots=4", " #", " x"])),
    max_size=8,
)


@given(st.text("ab:=slot 1#\n\r\t-@[]", max_size=40) | LINES.map(lambda lines: "\n".join(map("".join, lines))))
@example("a\x85b")
def test_any_text_is_hosts_or_refused(text: str) -> None:
    try:
        found = hosts(text)
    except ProfileError:
        error = refused(text)
        assert error.hint
        assert error.line is None or 1 <= error.line <= text.count("\n") + 1
        return
    assert found
    assert len({host for host, _ in found}) == len(found)
    assert all(ranks is None or 1 <= ranks <= MAX_RANKS for _, ranks in found)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=20))
def test_no_line_of_a_pbs_file_is_lost(names: list[str]) -> None:
    found = dict(hosts("\n".join(names)))
    assert list(found) == list(dict.fromkeys(names))
    if len(found) < len(names):
        assert sum(ranks or 0 for ranks in found.values()) == len(names)
    else:
        assert set(found.values()) == {None}
