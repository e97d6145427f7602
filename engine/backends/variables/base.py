"""What is known of an environment variable, as data."""

from __future__ import annotations

import re

import msgspec


class Takes(msgspec.Struct, frozen=True, kw_only=True):
    """Which values a variable takes. `pattern`: a regular expression for all of a value; `words`: the same for people.
    `exact`: whether capitals matter."""

    words: str
    pattern: str
    exact: bool = False

    def allows(self, value: str) -> bool:
        """Whether that is a value for it."""
        return re.fullmatch(self.pattern, value, 0 if self.exact else re.IGNORECASE) is not None


def one_of(*values: str, exact: bool = False) -> Takes:
    """A few words and no others."""
    *most, last = values
    pattern = "|".join(map(re.escape, values))
    return Takes(words=f"{', '.join(most)} or {last}" if most else last, pattern=pattern, exact=exact)


WHOLE = Takes(words="a whole number", pattern=r"\s*[+-]?(?:0x[0-9a-f]+|\d+)\s*")

SWITCH = Takes(words="0 or 1", pattern=WHOLE.pattern)
"""A number that is a switch: other numbers are read as well, words are not."""

TORCH_SWITCH = Takes(words="0 or 1", pattern="y|yes|1|t|true|n|no|0|f|false")
"""torch refuses anything else, with an error."""

MCA_SWITCH = Takes(words="true or false", pattern=r"[+-]?\d+|t|f|true|false|y|n|yes|no|on|off|enabled?|disabled?|auto")


class Variable(msgspec.Struct, frozen=True):
    """A variable that exists.

    Args:
        name: of the variable.
        default: what holds where it is not set.
        does: a sentence without its full stop.
        when: it should be set, as a clause; empty: where the sentence says it all.
        takes: None: nothing is checked.
        since: first version, of torch, of NCCL or of Open MPI.
        until: last version.
        instead: what the other versions of Open MPI call it, with a value in brackets where that differs.
        aliases: old names that are still read.
        sets: what rankdeck sets it to; empty: it leaves it alone.
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
    """A variable that people set and nobody reads.

    Args:
        name: of the variable.
        why: it does nothing, as the end of a sentence.
        hint: what does what was meant.
    """

    name: str
    why: str
    hint: str


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of one library.

    Args:
        title: whose they are.
        reader: who reads them, as a word in a sentence.
        prefixes: that all names which begin so are its own.
        backends: that it matters to.
        variables: those that are worth a description.
        gone: those that do nothing.
        others: names that exist, of which no more is said, as words.
        is_complete: whether there are no more names with these prefixes.
        likeness: of names, from which on one is taken for another that is misspelt; high where many real names are alike.
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
