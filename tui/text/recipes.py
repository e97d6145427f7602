"""Recipes as text: what each shows and takes, and its script. Pure text."""

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content

from engine.core.arguments.argument import RecipeInfo
from tui.text.cells import clean, plain_line
from tui.text.lines import labelled, sentence
from tui.text.marks import MUTED, shown

CONTINUES = "↪ "  # before the part of a line of code that had no room


def recipes_text(recipes: Sequence[RecipeInfo], chosen: str, width: int, *, ascii: bool = False) -> Content:
    """The chosen recipe's lesson and arguments, then the other recipes."""
    lines: list[Content] = []
    for recipe in recipes:
        if recipe.name == chosen:
            lines += _whole(recipe, width)
            lines += [Content(""), Content.styled("Other recipes", "bold")]
    for recipe in recipes:
        if recipe.name != chosen:
            lines += [Content.styled(plain_line(recipe.name), "bold"), *_indented(recipe.summary, width)]
    return shown(Content("\n").join(lines), ascii=ascii)


def _whole(recipe: RecipeInfo, width: int) -> list[Content]:
    lines = [Content.styled(plain_line(recipe.name), "bold $text-accent"), *sentence(recipe.summary, width)]
    for backend, why in recipe.refused.items():
        lines += sentence(f"can't run on {backend}: {why}", width, "$text-error")
    fewest, most = recipe.ranks
    if fewest or most:
        limits = (f"{fewest} or more" if fewest else "", f"{most} or fewer" if most else "")
        lines += labelled("ranks", ", ".join(filter(None, limits)), width)
    lines += [Content(""), Content.styled("It takes", "bold")]
    for argument in recipe.accepted:
        lines += [Content.styled(f"--{argument.name}", "$text-accent"), *_indented(argument.described, width)]
    for paragraph in recipe.lesson.split("\n\n"):
        is_code = paragraph.startswith(" ")
        parts = paragraph.split("\n") if is_code else [" ".join(paragraph.split())]
        lines += [Content(""), *(line for part in parts for line in sentence(part, width))]
    return lines


def _indented(text: str, width: int) -> list[Content]:
    return [Content.assemble("  ", line) for line in sentence(text, width - 2)]


def script_text(source: str, width: int, *, ascii: bool = False) -> Content:
    """A Python script in colours. A long line continues below, with a sign before the rest."""
    from textual.highlight import HighlightTheme, highlight  # importing pygments would delay the first frame of the app

    class Theme(HighlightTheme):
        """Content shows `$text 60%` as white."""

        STYLES = {token: MUTED if style == "$text 60%" else style for token, style in HighlightTheme.STYLES.items()}  # noqa: RUF012

    sign = shown(Content.styled(CONTINUES, MUTED), ascii=ascii)
    room = max(1, width - cell_len(CONTINUES))
    lines: list[Content] = []
    for line in highlight(clean(source), language="python", theme=Theme).split("\n", allow_blank=True):
        if line.cell_length <= width:
            lines.append(line)
            continue
        first, *more = _pieces(line, width, room)
        lines += [first, *(Content.assemble(sign, piece) for piece in more)]
    return Content("\n").join(lines)


def _pieces(line: Content, width: int, room: int) -> list[Content]:
    """A line cut into a first piece of `width` cells and others of `room`."""
    pieces: list[Content] = []
    begin = cells = 0
    for place, character in enumerate(line.plain):
        limit = room if pieces else width
        if cells + cell_len(character) > limit:
            pieces.append(line[begin:place])
            begin, cells = place, 0
        cells += cell_len(character)
    return [*pieces, line[begin:]]
