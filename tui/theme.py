"""Two themes of our own, one dark and one light: quiet greys, one blue for where you are, colour for states only. With `NO_COLOR` there
is neither: text and background are the terminal's own, and highlighted text is reversed."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from engine.core.tables import read_table

CSS = Path(__file__).with_name("rankdeck.tcss")  # how everything looks

STANDS_OUT = 0.075
"""The difference in brightness between the screen and a part of it, from 0 to 1. A cursor or a toast has more of it, a quiet pane less."""


class _Colour(NamedTuple):
    name: str
    dark: str
    light: str


_COLOURS = read_table("tui", "theme", _Colour)


def _theme(name: str, colours: Mapping[str, str], *, dark: bool) -> Theme:
    """A theme. Only the moving part of a scrollbar stands out, without colours too."""
    tracks = {
        f"scrollbar-{part}": colours["background"] for part in ("background", "background-hover", "background-active")
    }
    variables = {key: colour for key, colour in colours.items() if "-" in key or key == "border"}
    basic: dict[str, Any] = {key: colour for key, colour in colours.items() if key not in variables}
    return Theme(name, dark=dark, variables=variables | tracks, **basic)


DARK = _theme("rankdeck-dark", {colour.name: colour.dark for colour in _COLOURS}, dark=True)
LIGHT = _theme("rankdeck-light", {colour.name: colour.light for colour in _COLOURS}, dark=False)


class Restyled(LineFilter):
    """Draws text in other styles. `restyle`: makes them of the styles of the theme."""

    def __init__(self, restyle: Callable[[Style], Style]) -> None:
        super().__init__()
        self._restyle = restyle

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, style and self._restyle(style), control) for text, style, control in segments]


@lru_cache(1024)
def without_colours(style: Style, background: Color) -> Style:
    """Takes the colours away. Textual's own filter for `NO_COLOR` (8.2.8) paints greys on a background of its own, which a light terminal
    turns into a dark one."""
    paper = background if style.bgcolor is None else Color.from_rich_color(style.bgcolor)
    plain = style.without_color + Style.from_meta(style.meta)  # clicks ask for what is there
    if abs(paper.brightness - background.brightness) > STANDS_OUT:
        return plain + Style(reverse=not style.reverse)
    return plain


_HUES = (
    (20, "red"),
    (70, "yellow"),
    (165, "green"),
    (200, "cyan"),
    (270, "bright_blue"),
    (330, "magenta"),
    (360, "red"),
)
"""Degrees up to which a colour has a name."""

_LEAST_SATURATION = 0.25  # a colour with less saturation is a grey


@lru_cache(4096)
def _of_sixteen(style: Style, background: Color | None) -> Style:
    """Chooses by the hue among the 16 colours of a terminal: the nearest of them is a grey for most colours of a quiet theme. Text in the colour
    of its background loses the background: a theme of the terminal's own colours can't mix them. `background`: that of the theme; None: the
    theme has the terminal's own colours."""
    if style.color is not None and style.color == style.bgcolor:
        return style.without_color + Style(color=style.color, meta=style.meta)
    if background is None:
        return style
    plain = without_colours(style, background)
    if style.color is None or plain.reverse:
        return plain
    hue, saturation, _ = Color.from_rich_color(style.color).hsv
    if saturation < _LEAST_SATURATION:
        return plain
    return plain + Style(color=next(name for end, name in _HUES if hue * 360 <= end))


def own_filters(theme: Theme, system: str | None, *, no_color: bool) -> list[LineFilter]:
    """The filters that a theme needs on a terminal. `system`: the terminal's colours, as rich names them."""
    if not no_color and theme.ansi:
        return [Restyled(partial(_of_sixteen, background=None))]
    if not no_color and system != "standard":
        return []
    background = Color.parse("black" if theme.ansi else theme.background or "black")
    return [Restyled(partial(without_colours if no_color else _of_sixteen, background=background))]
