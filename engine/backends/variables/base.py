"""Types for facts about environment variables."""

from __future__ import annotations

import re

import msgspec


class Takes(msgspec.Struct, frozen=True, kw_only=True):
    """Valid values of a variable. `pattern`: a regular expression for the whole value; `words`: the same in words. `exact`: whether case
    matters."""

    words: str
    pattern: str
    exact: bool = False

    def allows(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value, 0 if self.exact else re.IGNORECASE) is not None


def one_of(*values: str, exact: bool = False) -> Takes:
    """A few words and no others."""
    *most, last = values
    pattern = "|".join(map(re.escape, values))
    return Takes(words=f"{', '.join(most)} or {last}" if most else last, pattern=pattern, exact=exact)


WHOLE = Takes(words="a whole number", pattern=r"\s*[+-]?(?:0x[0-9a-f]+|\d+)\s*")

SWITCH = Takes(words="0 or 1", pattern=WHOLE.pattern)
"""A switch that is read as a number: words are invalid."""

TORCH_SWITCH = Takes(words="0 or 1", pattern="y|yes|1|t|true|n|no|0|f|false")
"""torch refuses anything else, with an error."""

MCA_SWITCH = Takes(words="true or false", pattern=r"[+-]?\d+|t|f|true|false|y|n|yes|no|on|off|enabled?|disabled?|auto")


class Variable(msgspec.Struct, frozen=True):
    """A variable that exists.

    Args:
        name: of the variable.
        default: value if it is not set.
        does: its effect, a sentence without the full stop.
        when: to set it, as a clause; empty: the effect explains it.
        takes: valid values; None: not checked.
        since: first version of torch, NCCL or Open MPI.
        until: last version.
        instead: its name in other versions of Open MPI, with the value in brackets if that differs.
        aliases: old names that are still read.
        sets: value set by rankdeck; empty: rankdeck does not set it.
        fixed: whether rankdeck's value wins over the profile's.
    """

    name: str
    default: str
    does: str
    when: str = ""
    takes: Takes | None = None
    since: str = ""
    until: str = ""
    instead: str = ""
    aliases: tuple[str, ...] = ()
    sets: str = ""
    fixed: bool = False


class Gone(msgspec.Struct, frozen=True):
    """A name that users set, but that does nothing.

    Args:
        name: of the variable.
        why: the reason, as the end of a sentence.
        hint: what to set instead.
    """

    name: str
    why: str
    hint: str


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of one library.

    Args:
        title: heading of the list.
        reader: the library, as a word in a sentence.
        prefixes: all names with these prefixes belong to the library.
        backends: that use the library.
        variables: with descriptions.
        gone: names that do nothing.
        others: further existing names, separated by spaces.
        is_complete: whether all names with these prefixes are listed.
        likeness: minimum similarity for treating a name as misspelt; high if many real names are similar.
    """

    title: str
    reader: str
    prefixes: tuple[str, ...]
    backends: frozenset[str]
    variables: tuple[Variable, ...]
    gone: tuple[Gone, ...] = ()
    others: str = ""
    is_complete: bool = False
    likeness: float = 0.88

    @property
    def names(self) -> frozenset[str]:
        """Every name that it reads."""
        own = (name for one in self.variables for name in (one.name, *one.aliases))
        return frozenset((*own, *self.others.split()))
