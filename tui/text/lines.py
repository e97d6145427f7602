"""Words in lines of a given width: sentences, labelled values, errors. Pure text."""

from collections.abc import Iterable

from rich.cells import cell_len
from textual.content import Content

from engine.core.errors import RankdeckError
from tui.text.cells import plain_line
from tui.text.marks import MUTED

LABEL = 10  # cells of the column with the labels


def wrapped(words: str | Iterable[str], width: int) -> list[str]:
    """Words in lines of at most `width` cells. A word is broken only where it alone is longer than a line."""
    width = max(1, width)
    lines: list[str] = [""]
    for word in words.split() if isinstance(words, str) else words:
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append("")
        elif lines[-1]:
            lines[-1] += " "
        for character in word:
            if cell_len(lines[-1]) + cell_len(character) > width:
                lines.append("")
            lines[-1] += character
    return lines


def sentence(text: str, width: int, style: str = "") -> list[Content]:
    """A text from outside, without control sequences, wrapped."""
    return [Content.styled(line, style) for line in wrapped(plain_line(text), width)]


def labelled(label: str, words: str | Iterable[str], width: int, *, style: str = "") -> list[Content]:
    """A label and words beside it; the column of the label stays empty in the lines that follow."""
    lines = wrapped(words, max(8, width - LABEL - 1))
    return [
        Content.assemble((f"{label if index == 0 else '':<{LABEL}} ", MUTED), (line, style))
        for index, line in enumerate(lines)
    ]


def error_text(error: RankdeckError, width: int) -> Content:
    lines = sentence(error.message, width, "$text-error")
    if error.hint:
        lines += [Content(""), *sentence(error.hint, width)]
    return Content("\n").join(lines)
