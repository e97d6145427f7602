"""State by sign, word and colour, so that none of them is needed alone; and what else differs with `--ascii`."""

from __future__ import annotations

from typing import NamedTuple

from engine.core.checks.findings import State
from engine.core.run.state import RankWord, RunWord

MUTED = "$foreground 60%"
"""Style of what is there to be looked up. `$text-muted` is a CSS `auto` colour, which Content (8.2.8) shows as white."""


class Mark(NamedTuple):
    """How a state looks. `style` is Textual's, so it follows the theme."""

    sign: str
    ascii: str
    style: str


RUN_MARKS: dict[RunWord, Mark] = {
    "starting": Mark("◌", ".", "$text-warning"),
    "running": Mark("●", "*", "$text-success"),
    "holding": Mark("◆", "!", "$text-warning bold"),
    "succeeded": Mark("✔", "+", "$text-success"),
    "failed": Mark("✖", "X", "$text-error bold"),
    "stopped": Mark("■", "-", MUTED),
}

RUN_WORDS: dict[RunWord, str] = {
    "starting": "its ranks are being started",
    "running": "every rank was started and none has failed",
    "holding": "a rank failed; the others are left as they are until you decide",
    "succeeded": "every rank ended with exit status 0",
    "failed": "it ended because a rank failed",
    "stopped": "somebody stopped it",
}
"""What the states mean, for the help screen."""

GLYPHS: dict[RankWord, str] = {
    "starting": "◌",
    "running": "●",
    "exited": "✔",
    "failed": "✖",
    "lost": "?",
    "stopped": "■",
}
ASCII_GLYPHS: dict[RankWord, str] = {
    "starting": ".",
    "running": "*",
    "exited": "+",
    "failed": "X",
    "lost": "?",
    "stopped": "-",
}
"""Each state has its glyph besides its word and its colour."""

CURSOR = "▸"
ASCII_CURSOR = ">"

MIXED = "◐"
ASCII_MIXED = "%"
"""Sign of a node whose ranks are not all in the same state."""

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-:=+*#"
ODD = "×"  # noqa: RUF001  not the letter
ASCII_ODD = "x"
"""Blocks of a sparkline, lowest first, and the mark of a value that is not finite."""

CHECK_MARKS: dict[State | None, Mark] = {
    "ok": Mark("●", "*", "$text-success"),
    "warn": Mark("▲", "!", "$text-warning bold"),
    "fail": Mark("✖", "X", "$text-error bold"),
    "skip": Mark("·", "-", MUTED),
    None: Mark("◌", ".", MUTED),
}
"""How a check came out; None: it has not yet."""

RESULT_WORDS: dict[State | None, str] = {
    "ok": "no problem was found",
    "warn": "a launch may work; the text describes the risk",
    "fail": "a launch would fail, at once or later",
    "skip": "it was not checked; the text says why",
    None: "it was not checked yet",
}
"""What that means, for the help screen."""


def sign(state: RunWord, *, ascii: bool) -> str:  # noqa: A002  named after the command line's flag
    """The sign of a run's state."""
    mark = RUN_MARKS[state]
    return mark.ascii if ascii else mark.sign


def bar(fraction: float, width: int, *, ascii: bool) -> tuple[str, str]:  # noqa: A002
    """A progress bar as its done and its open part, together `width` cells.

    Args:
        fraction: 0 to 1.
        width: cells.
        ascii: draws with ASCII characters.
    """
    done = round(max(0.0, min(1.0, fraction)) * width)
    return ("=" * done, "-" * (width - done)) if ascii else ("━" * done, "─" * (width - done))


def to_ascii(text: str) -> str:
    """The app's own punctuation in ASCII; what ranks print is left alone."""
    return text.translate(_ASCII)


_ASCII = str.maketrans({"…": "~", "–": "-", "·": "|", "•": "*", "→": "->", "✔": "+", "✖": "X"})  # noqa: RUF001
