"""Tables that come with rankdeck as TSV files, so that data is read and added to as data. The first line of a file that is no comment
(`#`) names the columns. A row has a tab between two cells; empty cells at its end may be missing."""

import pkgutil
from collections.abc import Callable
from functools import cache
from typing import TypeVar

Row = TypeVar("Row")


def read_table(package: str, name: str, row: Callable[..., Row]) -> list[Row]:
    """The rows of `name.tsv` in a package; `row` takes the cells of each as positional arguments."""
    text = (pkgutil.get_data(package, f"{name}.tsv") or b"").decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [row(*line.split("\t")) for line in lines[1:]]


@cache
def read_words(package: str, name: str) -> dict[str, str]:
    """A table with two columns: what the second one says of the first."""
    return dict(read_table(package, name, lambda key, words: (key, words)))
