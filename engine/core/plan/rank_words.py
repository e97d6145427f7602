"""The words `{rank}`, `{local_rank}` and `{world_size}` in the arguments of a program, which stand for the numbers of each rank.

Doubled braces, `{{rank}}`, stand for the word itself. All other braces, such as those of JSON, are not changed.
"""

from __future__ import annotations

import re

from engine.core.plan.layout import Place

_WORDS = re.compile(r"\{\{(?P<doubled>rank|local_rank|world_size)\}\}|\{(?P<name>rank|local_rank|world_size)\}")

_ONE = re.compile(r"\{(rank|local_rank|world_size)\}")


def with_place(argument: str, place: Place, world_size: int) -> str:
    """An argument with the numbers of a rank in place of the words."""
    numbers = {"rank": place.rank, "local_rank": place.local_rank, "world_size": world_size}
    return _WORDS.sub(lambda found: str(numbers[found["name"]]) if found["name"] else found[0][1:-1], argument)


def names_rank(argument: str) -> bool:
    """Whether `with_place` changes an argument."""
    return _WORDS.search(argument) is not None


def literal(argument: str) -> str:
    """The text to write so that `with_place` returns this argument for every rank."""
    return _ONE.sub(r"{{\1}}", argument)
