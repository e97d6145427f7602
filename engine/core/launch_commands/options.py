"""Reads the options of a launcher by a table of them.

Launchers abbreviate, join and spell options in their own ways: `--nproc_per_node 4`, `--nproc-per=4`, `-n4`, `-np 4`. A table says which
spellings a launcher accepts and what each option means here; a word that is in no table is an error, because it is not known
whether the next word is its value.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import Word

ADDRESS = "rankdeck finds the address and a free port itself"
OUTPUT = "rankdeck keeps the output of every rank: rankdeck logs"
TIMING = "rankdeck detects failed ranks by itself"
BINDING = "rankdeck binds ranks to cores by layout.bind"
SCHEDULER = "what the scheduler needs stays in the batch file"
DEFAULT = ""
"""Reasons why an option has no counterpart. Without a reason, it says what rankdeck does anyway."""


class Option(NamedTuple):
    """One option of a launcher."""

    names: tuple[str, ...]
    key: str
    """What it means, for whoever reads the table; empty: nothing."""
    takes: int
    """How many words follow it."""
    why: str
    """Why it is left out."""


class Table(NamedTuple):
    """The options of a launcher."""

    launcher: str
    options: tuple[Option, ...]
    abbreviates: bool
    """Whether `--nproc` may be an abbreviation of `--nproc-per-node`."""
    last: str = ""
    """Meaning of the option that ends the options: all that follows belongs to the program."""

    @property
    def names(self) -> list[str]:
        """Every spelling."""
        return [name for option in self.options for name in option.names]


class Given(NamedTuple):
    """An option of a command: the table's line, the word, and the words after it."""

    option: Option
    word: Word
    values: tuple[Word, ...]


def option(names: str, key: str = "", *, takes: int = 1, why: str = DEFAULT) -> Option:
    """A line of a table. `names` has all spellings, with blanks between; `_` and `-` inside of them are the same."""
    return Option(tuple(map(_spelled, names.split())), key, takes, why)


def flag(names: str, key: str = "", *, why: str = DEFAULT) -> Option:
    """A line of a table for an option without a value."""
    return option(names, key, takes=0, why=why)


def left_out(why: str, names: str, *, takes: int = 1) -> tuple[Option, ...]:
    """Lines of a table for options without a counterpart: each word of `names` is one."""
    return tuple(option(name, takes=takes, why=why) for name in names.split())


def read_options(words: Sequence[Word], table: Table) -> tuple[list[Given], list[Word]]:
    """The options at the beginning of a command, and the words after them.

    Raises:
        UsageError: the launcher has no such option, or its value is missing.
    """
    given: list[Given] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word.text == "--":
            return given, list(words[at + 1 :])
        if not word.text.startswith("-") or word.text == "-":
            break
        found, joined = _find(word, table)
        values = [Word(joined, word.place)] if joined is not None and found.takes else []
        need = found.takes - len(values)
        values += words[at + 1 : at + 1 + need]
        if len(values) < found.takes:
            raise UsageError(
                f"{word.place}: {word.text} of {table.launcher} has no value", hint="write the value after it"
            )
        given.append(Given(found, word, tuple(values)))
        at += 1 + need
        if found.key and found.key == table.last:
            break
    return given, list(words[at:])


def _find(word: Word, table: Table) -> tuple[Option, str | None]:
    """The option that a word is, and the value that is joined to it."""
    text, equals, value = word.text.partition("=")
    joined = value if equals else None
    name = _spelled(text)
    for one in table.options:
        if name in one.names:
            return one, joined
    if name.startswith("--") and table.abbreviates:
        near = {one for one in table.options if any(known.startswith(name) for known in one.names)}
        if len(near) == 1:
            return near.pop(), joined
    if not name.startswith("--"):
        for one in table.options:
            if one.takes == 1 and word.text[:2] in one.names and len(word.text) > 2:
                return one, word.text[2:]
    close = difflib.get_close_matches(name, table.names, 1, 0.6)
    raise UsageError(
        f"{word.place}: {table.launcher} has no option {text} that rankdeck knows",
        hint=f"did you mean {close[0]}?" if close else "leave it out, and set what it means in the profile",
    )


def _spelled(name: str) -> str:
    """An option's name with dashes only; values are not changed."""
    return name[:2] + name[2:].replace("_", "-")
