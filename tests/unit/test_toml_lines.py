"""The line of every key, so that an error can point at it."""

from typing import Any

import pytest
import tomli
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.plan.document.places import key_lines, line_of
from tests.support import from_table


def path(text: str) -> tuple[str, ...]:
    return tuple(text.split("."))


@from_table
def test_the_line_of_a_key_is_found(text: str, key: str, line: int) -> None:
    tomli.loads(text)
    assert key_lines(text)[path(key)] == line


@pytest.mark.parametrize("text", ['a = """\nc = 1\n[x]\n"""\n', "a = [\n'c = 1',\n]\n", "# c = 1\n", "a = 'c = 1'\n"])
def test_what_only_looks_like_a_key_is_none(text: str) -> None:
    tomli.loads(text)
    assert set(key_lines(text)) == {("a",)} & set(key_lines(text))
    assert ("c",) not in key_lines(text)
    assert ("x",) not in key_lines(text)


def test_a_key_without_a_line_has_that_of_what_is_around_it() -> None:
    lines = key_lines("a = 1\n[t]\nb = 1\n")
    assert line_of(lines, path("t.b.c.d")) == 3
    assert line_of(lines, path("t.z")) == 2
    assert line_of(lines, path("z")) is None
    assert line_of(lines, ()) is None


KEYS = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="-_"), min_size=1, max_size=5)
VALUES = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=6) | st.text("\n\"'[]{}=#\\x", max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)
TABLES = st.recursive(
    st.dictionaries(KEYS, VALUES, max_size=4),
    lambda inner: st.dictionaries(KEYS, VALUES | inner, max_size=3),
    max_leaves=5,
)


def leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in table.items():
        found += leaves(value, (*path, key)) if isinstance(value, dict) else [(*path, key)]
    return found


def without(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    copy = {key: without(value, path[1:]) if key == path[0] and path[1:] else value for key, value in data.items()}
    if not path[1:]:
        del copy[path[0]]
    return copy


@given(TABLES, st.data())
@settings(deadline=None)
def test_every_key_of_a_written_document_stands_where_it_is_said_to(table: dict[str, Any], data: st.DataObject) -> None:
    """Taking the line out (with what the value goes on for) takes exactly that key out."""
    text = tomlkit.dumps(table)
    lines = key_lines(text)
    keys = leaves(tomli.loads(text))
    assert set(keys) <= set(lines)
    if not keys:
        return
    key = data.draw(st.sampled_from(keys))
    rows = text.split("\n")
    begin = lines[key] - 1
    end = begin + 1
    while True:
        try:
            left = tomli.loads("\n".join(rows[:begin] + rows[end:]))
            break
        except tomli.TOMLDecodeError:
            end += 1
    assert left == without(tomli.loads(text), key)


@given(st.text())
@settings(deadline=None)
def test_no_text_makes_it_fail(text: str) -> None:
    assert all(1 <= line <= text.count("\n") + 1 for line in key_lines(text).values())
