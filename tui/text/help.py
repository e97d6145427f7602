"""The text of the help screen: the table of keys, the signs of states, the terms. Pure text."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from textual.content import Content

from engine.core.run.state import RankWord
from tui.keys import PLACES, keys_of
from tui.text.lines import wrapped
from tui.text.marks import CHECK_MARKS, RESULT_WORDS, RUN_MARKS, RUN_WORDS, shown, signs

RANK_WORDS: dict[RankWord, str] = {
    "starting": "it has no process yet",
    "running": "its process exists",
    "exited": "it ended with exit status 0",
    "failed": "it ended with another exit status, or by a signal",
    "lost": "how it ended is unknown",
    "stopped": "it ended while the run was being stopped",
}

WORDS: dict[str, str] = {
    "profile": "A TOML file with backend, layout, recipe and launch policy, to save and share.",
    "plan": "The ranks, nodes and commands that a profile resolves to. Exactly this is launched.",
    "run": "One launch of a plan. It keeps running when the app or the terminal closes.",
    "node": "A machine that ranks run on.",
    "rank": "One process of the run, by its number; the world size is how many there are.",
    "attempt": "One start of all ranks; the first is attempt 0, as torchrun counts. Each has its own logs.",
    "generation": "Counts rejoins: dead ranks came back and the others kept running. 0.2 is generation 2 of attempt 0.",
    "recipe": "A training script that comes with rankdeck.",
    "backend": "How ranks communicate: a process group of PyTorch.",
    "supervisor": "The process that owns one run.",
}

COLUMN = 22
NARROW_COLUMN = 14  # cells of the left column, on a wide and on a narrow screen


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
    runs = [(RUN_MARKS[word], word, text) for word, text in RUN_WORDS.items()]
    results = [(CHECK_MARKS[state], state or "checking", text) for state, text in RESULT_WORDS.items()]
    yield "States of a run", [_Row(f"{mark.sign(ascii=ascii)} {word}", text, mark.style) for mark, word, text in runs]
    ranks = signs(ascii=ascii).ranks
    yield "States of a rank", [_Row(f"{ranks[word]} {word}", text, "bold") for word, text in RANK_WORDS.items()]
    yield (
        "Results of a check",
        [_Row(f"{mark.sign(ascii=ascii)} {word}", text, mark.style) for mark, word, text in results],
    )
    yield "Terms", [_Row(word, text, "bold") for word, text in WORDS.items()]


def _lines(row: _Row, width: int) -> list[Content]:
    column = COLUMN if width >= 60 else NARROW_COLUMN
    lines = wrapped(row.right, max(10, width - column - 1))
    return [
        Content.assemble((f"{row.left[:column] if index == 0 else '':<{column}} ", row.style), line)
        for index, line in enumerate(lines)
    ]
