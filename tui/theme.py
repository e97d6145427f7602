"""Two themes of our own, one dark and one light: quiet greys, one blue for where you are, colour for states only. With `NO_COLOR` there
is neither: text and background are the terminal's own, and highlighted text is reversed."""

from functools import lru_cache
from pathlib import Path

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

CSS = Path(__file__).with_name("rankdeck.tcss")  # how everything looks

STANDS_OUT = 0.075
"""Difference in brightness from the screen's background, of 1: more for a cursor or a toast, less for a quiet pane."""


def _quiet_tracks(background: str) -> dict[str, str]:
    """Of a scrollbar only the part that moves stands out, without colours too."""
    return {f"scrollbar-{part}": background for part in ("background", "background-hover", "background-active")}


DARK = Theme(
    name="rankdeck-dark",
    primary="#5b9bd5",
    secondary="#7f9db9",
    accent="#7fb2e5",
    foreground="#d3d7de",
    background="#14171c",
    surface="#181c22",
    panel="#20252d",
    success="#6fb583",
    warning="#d9a94e",
    error="#e0626b",
    dark=True,
    variables={
        "border": "#5b9bd5",
        "border-blurred": "#3a424e",
        "footer-background": "#14171c",
        "block-cursor-background": "#2c4a68",
        "block-cursor-foreground": "#f2f5f9",
        "block-cursor-blurred-background": "#232a33",
        "input-selection-background": "#5b9bd5 35%",
        **_quiet_tracks("#14171c"),
    },
)

LIGHT = Theme(
    name="rankdeck-light",
    primary="#1f6fb2",
    secondary="#48698a",
    accent="#1a5f9a",
    foreground="#22272e",
    background="#f4f5f7",
    surface="#fbfbfc",
    panel="#e8ebef",
    success="#2b7a43",
    warning="#94650a",
    error="#b3303c",
    dark=False,
    variables={
        "border": "#1f6fb2",
        "border-blurred": "#c3cad3",
        "footer-background": "#f4f5f7",
        "block-cursor-background": "#cfe2f3",
        "block-cursor-foreground": "#14171c",
        "block-cursor-blurred-background": "#e3e8ee",
        "input-selection-background": "#1f6fb2 30%",
        **_quiet_tracks("#f4f5f7"),
    },
)


class NoColours(LineFilter):
    """Takes the colours away. Textual's own filter for `NO_COLOR` (8.2.8) paints greys on a background of its own, which a light terminal
    turns into a dark one."""

    def __init__(self, background: Color) -> None:
        super().__init__()
        self._background = background

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, style and _plain(style, self._background), control) for text, style, control in segments]


@lru_cache(1024)
def _plain(style: Style, background: Color) -> Style:
    paper = background if style.bgcolor is None else Color.from_rich_color(style.bgcolor)
    if abs(paper.brightness - background.brightness) > STANDS_OUT:
        return style.without_color + Style(reverse=not style.reverse)
    return style.without_color
