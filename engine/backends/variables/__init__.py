"""Environment variables of torch and its communication libraries: which exist, what they do, and which names do nothing.

The facts are tables beside this module, one for each library. They come from its source, headers or tools; tests compare them with installed
versions. A row with nothing but a name is a variable that exists and is not described.
"""

import re
from functools import cache

import msgspec

from engine.core.tables import read_table


class Takes(msgspec.Struct, frozen=True, kw_only=True):
    """Valid values of a variable. `pattern`: a regular expression for the whole value; `words`: the same in words. `exact`: whether case
    matters."""

    words: str
    pattern: str
    exact: bool = False

    def allows(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value, 0 if self.exact else re.IGNORECASE) is not None


class Variable(msgspec.Struct, frozen=True):
    """A variable that exists: a row of a table."""

    name: str
    default: str = ""  # value if it is not set
    does: str = ""  # its effect, a sentence without the full stop; empty: it is not described
    takes: str = ""  # values, separated by `|`, after `=` if case matters; or a row of `values.tsv`; empty: not checked
    when: str = ""  # to set it, as a clause; empty: the effect explains it
    sets: str = ""  # value set by rankdeck; empty: rankdeck does not set it
    since: str = ""  # first version of torch, NCCL or Open MPI
    until: str = ""  # last version
    instead: str = ""  # its name in other versions of Open MPI, with the value in brackets if that differs
    aliases: str = ""  # old names that are still read, with spaces between
    fixed: str = ""  # not empty if rankdeck's value wins over the profile's

    @property
    def values(self) -> Takes | None:
        """Valid values; None: they are not checked."""
        return _takes(self.takes) if self.takes else None


class Gone(msgspec.Struct, frozen=True):
    """A name that users set, but that does nothing: a row of `gone.tsv`. `family`: whose name it looks like. `why`: the reason, as the end
    of a sentence. `hint`: what to set instead."""

    family: str
    name: str
    why: str
    hint: str


class _Values(msgspec.Struct, frozen=True):
    """A row of `values.tsv`: a word for the column `takes`, and the fields of `Takes`."""

    kind: str
    words: str
    pattern: str


class _Library(msgspec.Struct, frozen=True):
    """A row of `families.tsv`: cells with the fields of `Family`, and spaces between words."""

    name: str
    title: str
    reader: str
    backends: str
    prefixes: str = ""
    complete: str = ""
    likeness: str = "0.88"


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of one library."""

    name: str
    title: str  # heading of the list
    reader: str  # the library, as a word in a sentence
    backends: frozenset[str]  # that use the library
    prefixes: tuple[str, ...]  # all names with these prefixes belong to the library
    is_complete: bool  # whether all names with these prefixes are listed
    likeness: float  # minimum similarity for treating a name as misspelt; high if many real names are similar
    variables: tuple[Variable, ...]  # with descriptions
    gone: tuple[Gone, ...]  # names that do nothing
    names: frozenset[str]  # every name that it reads


def _families() -> tuple[Family, ...]:
    gone = read_table(__name__, "gone", Gone)
    found: list[Family] = []
    for library in read_table(__name__, "families", _Library):
        rows = read_table(__name__, library.name, Variable)
        family = Family(
            name=library.name,
            title=library.title,
            reader=library.reader,
            backends=frozenset(library.backends.split()),
            prefixes=tuple(library.prefixes.split()),
            is_complete=bool(library.complete),
            likeness=float(library.likeness),
            variables=tuple(row for row in rows if row.does),
            gone=tuple(row for row in gone if row.family == library.name),
            names=frozenset(name for row in rows for name in (row.name, *row.aliases.split())),
        )
        found.append(family)
    return tuple(found)


@cache
def _kinds() -> dict[str, Takes]:
    return {row.kind: Takes(words=row.words, pattern=row.pattern) for row in read_table(__name__, "values", _Values)}


@cache
def _takes(cell: str) -> Takes:
    """The values that a cell of the column `takes` allows."""
    if cell in _kinds():
        return _kinds()[cell]
    *most, last = cell.removeprefix("=").split("|")
    pattern = "|".join(map(re.escape, (*most, last)))
    return Takes(words=f"{', '.join(most)} or {last}", pattern=pattern, exact=cell.startswith("="))


FAMILIES = _families()  # in the order in which they are shown: the backends' own first

VARIABLES = {one.name: (family, one) for family in FAMILIES for one in family.variables}
ALIASES = {alias: (family, one) for family in FAMILIES for one in family.variables for alias in one.aliases.split()}
GONE = {one.name: (family, one) for family in FAMILIES for one in family.gone}


def families_of(backend: str) -> list[Family]:
    return [family for family in FAMILIES if backend in family.backends]


def family_of(name: str) -> Family | None:
    """The family of a name: by the name itself, or by the longest matching prefix."""
    for known in (VARIABLES, ALIASES, GONE):
        if name in known:
            return known[name][0]
    fitting = [(prefix, family) for family in FAMILIES for prefix in family.prefixes if name.startswith(prefix)]
    return max(fitting, key=lambda pair: len(pair[0]))[1] if fitting else None
