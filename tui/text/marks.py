"""State by sign, word and colour, so that none of them is needed alone; and other differences with `--ascii`."""

from typing import NamedTuple

from textual.content import Content

from engine.core.checks.findings import State
from engine.core.run.state import ListedWord, RankWord

MUTED = "$foreground 60%"  # secondary text: `$text-muted` is a CSS `auto` colour, which Content (8.2.8) shows as white
CURSOR = 1  # cells of the sign before the line with the cursor


class Signs(NamedTuple):
    """The characters that tables and curves are drawn with."""

    cursor: str
    ranks: dict[RankWord, str]  # the sign of each state of a rank
    mixed: str  # the sign of a node whose ranks are in different states
    trouble: str  # the sign of a rank that runs, and hangs or lags
    blocks: str  # those of a sparkline, lowest first
    odd: str  # the sign of a value that is not finite


_SIGNS = Signs(
    cursor="▸",
    ranks={"starting": "◌", "running": "●", "exited": "✔", "failed": "✖", "lost": "?", "stopped": "■"},
    mixed="◐",
    trouble="▲",
    blocks="▁▂▃▄▅▆▇█",
    odd="×",  # noqa: RUF001  not the letter
)
_ASCII_SIGNS = Signs(
    cursor=">",
    ranks={"starting": ".", "running": "*", "exited": "+", "failed": "X", "lost": "?", "stopped": "-"},
    mixed="%",
    trouble="!",
    blocks="_.-:=+*#",
    odd="x",
)


def signs(*, ascii: bool) -> Signs:
    return _ASCII_SIGNS if ascii else _SIGNS


class Mark(NamedTuple):
    """How a state looks. `style` is Textual's, so it follows the theme."""

    unicode: str
    ascii: str
    style: str

    def sign(self, *, ascii: bool) -> str:
        return self.ascii if ascii else self.unicode


RUN_MARKS: dict[ListedWord, Mark] = {
    "queued": Mark("◔", "~", "$text-accent"),
    "starting": Mark("◌", ".", "$text-warning"),
    "running": Mark("●", "*", "$text-success"),
    "holding": Mark("◆", "!", "$text-warning bold"),
    "succeeded": Mark("✔", "+", "$text-success"),
    "failed": Mark("✖", "X", "$text-error bold"),
    "stopped": Mark("■", "-", MUTED),
    "unreadable": Mark("▲", "?", "$text-error"),
}

CHECK_MARKS: dict[State | None, Mark] = {
    "ok": Mark("●", "*", "$text-success"),
    "warn": Mark("▲", "!", "$text-warning bold"),
    "fail": Mark("✖", "X", "$text-error bold"),
    "skip": Mark("·", "-", MUTED),
    None: Mark("◌", ".", MUTED),
}
"""The result of a check; None: there is none yet."""


def bar(fraction: float, width: int, *, ascii: bool) -> tuple[str, str]:
    """A progress bar as its done and its open part, together `width` cells. `fraction`: 0 to 1."""
    done = round(max(0.0, min(1.0, fraction)) * width)
    return ("=" * done, "-" * (width - done)) if ascii else ("━" * done, "─" * (width - done))


def to_ascii(text: str) -> str:
    """The app's own punctuation in ASCII; the output of ranks is not changed."""
    return text.translate(_ASCII)


def shown(text: Content, *, ascii: bool) -> Content:
    """The text, with `ascii` in the punctuation of `to_ascii`. Its styles stay."""
    return Content(to_ascii(text.plain), list(text.spans)) if ascii else text


_FRAMES = dict(zip("┌┐└┘─│┬┴├┤┼", "++++-|+++++", strict=True))
_ASCII = str.maketrans({"…": "~", "–": "-", "·": "|", "•": "*", "→": "->", "↪": ">", "✔": "+", "✖": "X", **_FRAMES})  # noqa: RUF001
