"""Two themes of our own, one dark and one light: quiet greys, one blue for where you are, colour for states only."""

from __future__ import annotations

from textual.theme import Theme

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
    },
)
