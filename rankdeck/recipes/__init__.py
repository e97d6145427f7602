"""Training scripts that come with rankdeck. Each is a file to run (`python gpt.py --steps 100`) beside its declaration.

The declaration, `gpt.json` beside `gpt.py`, is the only place that says which arguments a recipe takes: the command line is
built from it here, and the profile editor builds its form from the same file.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_TYPES: dict[str, Callable[[str], int | float | str]] = {"int": int, "float": float, "str": str}


def arguments(recipe: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads a recipe's command line.

    Args:
        recipe: its name, which is that of its declaration: `gpt` for `gpt.json`.
        argv: the words; None: those of this process.

    Returns:
        One attribute per argument of the declaration; `checkpoint-every` becomes `checkpoint_every`.

    Raises:
        SystemExit: a word is wrong, or help was asked for; what to say has been printed.
    """
    declaration = json.loads(Path(__file__).with_name(f"{recipe}.json").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(prog=recipe, description=declaration["summary"], allow_abbrev=False)
    for argument in declaration["arguments"]:
        default = argument["default"]
        suffix = f" (default: {default})" if default != "" else ""
        parser.add_argument(
            f"--{argument['name']}",
            type=_reader(argument),
            default=default,
            metavar=argument["type"],
            help=(argument["help"] + suffix).replace("%", "%%"),
        )
    return parser.parse_args(argv)


def _reader(argument: dict[str, Any]) -> Callable[[str], int | float | str]:
    """Makes a value of an argument's word, which must be as the declaration says."""
    pattern = argument.get("pattern")
    if pattern is None:
        return _TYPES[argument["type"]]

    def read(word: str) -> int | float | str:
        if not re.fullmatch(pattern, word):
            raise argparse.ArgumentTypeError(f"{word!r} is not understood: {argument['help']}")
        return _TYPES[argument["type"]](word)

    return read
