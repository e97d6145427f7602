"""The text of the help screen: the table of keys, the signs of states, the terms. Pure text."""

from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from textual.content import Content

from engine.core.tables import read_table
from tui.keys import PLACES, keys_of
from tui.text.lines import wrapped
from tui.text.marks import CHECK_MARKS, RUN_MARKS, shown, signs

COLUMN = 22
NARROW_COLUMN = 14  # cells of the left column, on a wide and on a narrow screen


class _Term(NamedTuple):
    """A word of the app, and its meaning."""

    section: str
    word: str
    meaning: str


TERMS = read_table(__package__, "terms", _Term)


class _Row(NamedTuple):
    """A key, sign or term, and its meaning. `label`: another word that a search finds it by."""

    left: str
    right: str
    style: str
    label: str = ""


def help_text(
    query: str, width: int, *, ascii: bool, keymap: Mapping[str, str] = MappingProxyType({}), here: Collection[str] = ()
) -> Content:
    """The lines that contain `query`; empty: all. `here`: places of the table of keys that the user is at; their keys come first."""
    lines: list[Content | str] = []
    for title, rows in _sections(keymap, here, ascii=ascii):
        found = [row for row in rows if query.lower() in f"{title} {row.left} {row.right} {row.label}".lower()]
        if found:
            lines += ["", Content.styled(title, "bold underline")]
            lines += [line for row in found for line in _lines(row, width)]
    return shown(Content("\n").join(lines[1:]) if lines else Content(f"No match for {query!r}."), ascii=ascii)


def _sections(keymap: Mapping[str, str], here: Collection[str], *, ascii: bool) -> Iterator[tuple[str, list[_Row]]]:
    for where, title in sorted(PLACES.items(), key=lambda place: place[0] not in here):
        yield title, [_Row(key.shown, key.help, "bold $text-accent", key.label) for key in keys_of(where, keymap)]
    signed: dict[str, Mapping[str, tuple[str, str]]] = {
        "States of a run": {word: (mark.sign(ascii=ascii), mark.style) for word, mark in RUN_MARKS.items()},
        "States of a rank": {word: (sign, "bold") for word, sign in signs(ascii=ascii).ranks.items()},
        "Results of a check": {
            word or "checking": (mark.sign(ascii=ascii), mark.style) for word, mark in CHECK_MARKS.items()
        },
    }
    for title, terms in groupby(TERMS, key=lambda term: term.section):
        drawn = [(term, *signed.get(title, {}).get(term.word, ("", "bold"))) for term in terms]
        yield title, [_Row(f"{sign} {term.word}".lstrip(), term.meaning, style) for term, sign, style in drawn]


def _lines(row: _Row, width: int) -> list[Content]:
    column = COLUMN if width >= 60 else NARROW_COLUMN
    lines = wrapped(row.right, max(10, width - column - 1))
    return [
        Content.assemble((f"{row.left[:column] if index == 0 else '':<{column}} ", row.style), line)
        for index, line in enumerate(lines)
    ]
