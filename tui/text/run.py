"""A run in words: the two lines above the table, the card that explains a failure, the story, stacks. Pure text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, chop_cells
from textual.content import Content

from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import EventLine, FailureView, RunView
from tui.data.model import Header
from tui.numbers import NOTHING, age, duration, number, precise
from tui.text.cells import cell_fit, clean, plain_line
from tui.text.marks import MUTED, RUN_MARKS, bar, sign, to_ascii
from tui.text.plan import labelled, wrapped

MAX_NAME = 24
LOSS_CELLS = 9
"""Every loss that is not negative fits, so that what follows keeps its place."""

WIDE = 100
"""Cells of a line from which on `attempt 0.2` is written out."""

TRACEBACK_LINES = 12
"""Lines of a traceback on the card: its end is where the error is. The log has all of it."""

EVENT_STYLES = {"warning": "$text-warning", "error": "$text-error"}


def header_lines(header: Header, width: int, *, ascii: bool) -> tuple[Content, Content]:  # noqa: A002
    """The two lines above the rank table. Values keep their place and their width.

    Args:
        header: what to say.
        width: cells of a line.
        ascii: draws with ASCII characters.
    """
    lines = _state_line(header, width, ascii=ascii), _value_line(header, width)
    if ascii:
        first, second = (Content(to_ascii(line.plain), list(line.spans)) for line in lines)
        return first, second
    return lines


def _state_line(header: Header, width: int, *, ascii: bool) -> Content:  # noqa: A002
    name = plain_line(header.name)
    mark = RUN_MARKS[header.state]
    word = f"{sign(header.state, ascii=ascii)} {header.state:<9}"
    step = NOTHING if header.step is None else str(header.step)
    steps = f"step {step:>{len(str(header.steps or 0))}}" + (f"/{header.steps}" if header.steps else "")
    parts: list[tuple[str, str]] = [
        (cell_fit(name, min(cell_len(name), MAX_NAME, max(6, width // 4)), ascii=ascii), "bold"),
        (f"  {word}", mark.style),
        (
            f"  attempt {_attempt(header, width)}",
            MUTED if header.attempt == header.generation == 0 else "$text-warning",
        ),
        (f"  {steps}", ""),
    ]
    eta = f"ETA {duration(header.eta):<8}" if header.eta is not None else ""
    room = width - sum(cell_len(text) for text, _ in parts) - (len(eta) + 2 if eta else 0) - 2
    if header.fraction is not None and room >= 6:
        done, rest = bar(header.fraction, min(room, 60), ascii=ascii)
        parts += [
            ("  ", ""),
            (done, "$success" if header.state == "succeeded" else "$primary"),
            (rest, "$foreground 25%"),
        ]
    if eta:
        parts.append((f"  {eta}", ""))
    return Content.assemble(*parts)


def _attempt(header: Header, width: int) -> str:
    """Attempt and generation: `1`, `1.3`, and where there is room `1 · generation 3`."""
    if header.generation == 0:
        return str(header.attempt)
    return f"{header.attempt}{' · generation ' if width >= WIDE else '.'}{header.generation}"


def _value_line(header: Header, width: int) -> Content:
    unit = plain_line(header.unit)
    dead = header.alive < header.world_size and header.state in ("running", "holding")
    count = f"{header.alive:>{len(str(header.world_size))}}/{header.world_size} ranks"
    if header.state in ENDED_WORDS:
        count = f"{header.world_size} rank{'' if header.world_size == 1 else 's'}"
    parts: list[tuple[str, str]] = [
        (f"{duration(header.elapsed):<8} ", ""),
        (count, "$text-error bold" if dead else ""),
    ]
    if header.throughput is not None or header.state not in ENDED_WORDS:
        parts += [(f"  {number(header.throughput, 6)}", ""), (f" {unit}/s" if unit else " per s", MUTED)]
    parts += [("  loss", MUTED), (f" {precise(header.loss):>{LOSS_CELLS}}", "")]
    if header.checkpoint is not None:
        since = f", {age(header.checkpoint_age)} ago" if header.checkpoint_age is not None else ""
        parts.append((f"  checkpoint {header.checkpoint}{since}", MUTED))
    if doing := _doing(header):
        parts.append((f"  {plain_line(doing)}", "$text-warning"))
    line = Content.assemble(*parts)
    return line.truncate(width, ellipsis=True)


def _doing(header: Header) -> str:
    """What the run is doing; while nodes are unreachable, for how long they have been."""
    away = [f"{node} {away_words(seconds)}" for node, seconds in header.away.items()]
    more = f" and {len(away) - 2} more" if len(away) > 2 else ""
    return ", ".join(away[:2]) + more if away else header.doing


def away_words(seconds: float) -> str:
    """How long a node has been unreachable: `unreachable 12 s`."""
    return f"unreachable {age(seconds)}"


def why_text(run: RunView, width: int, *, ascii: bool) -> Content:  # noqa: A002
    """The card beside the log: what failed, what `r` would do, details, the next step with a line to copy, what
    followed, the end of the traceback."""
    failure = run.failure
    if failure is None:
        return Content("Nothing has failed.")
    lines: list[Content | str] = [
        Content.styled(line, "$text-error bold") for line in wrapped(plain_line(failure.headline).split(), width)
    ]
    if run.restart:  # before the details: the lines that a small screen shows
        words = wrapped(plain_line(run.restart).split(), max(8, width - 3))
        lines += [
            Content.assemble(("   " if index else "r  ", "bold $accent"), line) for index, line in enumerate(words)
        ]
    if failure.detail:
        lines += ["", *wrapped(plain_line(failure.detail).split(), width)]
    if failure.hint:
        lines += ["", *wrapped(plain_line(failure.hint).split(), width)]
    if failure.fix:
        lines += [Content.styled(line, "$text-accent") for line in wrapped(plain_line(failure.fix).split(), width)]
    followed = [plain_line(sentence) for sentence in failure.followed] or ([_others(failure)] if failure.others else [])
    lines += [""] if followed else []
    for sentence in followed:
        lines += [Content.styled(line, MUTED) for line in wrapped(sentence.split(), width)]
    if failure.traceback.strip():
        shown = clean(failure.traceback).rstrip().split("\n")
        cut = len(shown) - TRACEBACK_LINES
        above = [f"{'...' if ascii else '…'} {cut} lines above"] if cut > 0 else []
        lines += ["", *(Content.styled(line, MUTED) for line in [*above, *shown[-TRACEBACK_LINES:]])]
    return Content("\n").join(lines)


def _others(failure: FailureView) -> str:
    ranks = ", ".join(str(rank) for rank in failure.others[:8])
    more = f" and {len(failure.others) - 8} more" if len(failure.others) > 8 else ""
    return f"failed too: rank{'s' if len(failure.others) > 1 else ''} {ranks}{more}"


def events_text(events: Iterable[EventLine], width: int) -> Content:
    """The story of a run, oldest first."""
    lines: list[Content | str] = []
    for event in events:
        clock = time.strftime("%H:%M:%S", time.localtime(event.at))
        lines += labelled(clock, plain_line(event.text).split(), width, style=EVENT_STYLES.get(event.level, ""))
    return Content("\n").join(lines) if lines else Content("Nothing has happened yet.")


def stacks_text(lines: Sequence[str], width: int) -> Content:
    """Where every rank is in its Python code. A line that is too long is broken: the end of a path says the most.

    Args:
        lines: what `RunClient.stacks` says: a line for each group of ranks, below it its calls, indented.
        width: cells of a line.
    """
    shown: list[Content | str] = []
    for line in map(plain_line, lines):
        indent = min(len(line) - len(line.lstrip(" ")), width // 2)
        first, *others = (
            _broken(line.strip(" "), max(1, width - indent - 2)) if cell_len(line) > width else [line[indent:]]
        )
        parts = [" " * indent + first, *(" " * (indent + 2) + other for other in others)]
        shown += parts if indent else [Content.styled(part, "bold") for part in parts]
    return Content("\n").join(shown) if shown else Content("No rank has a stack.")


def _broken(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken after a space or a slash where there is one."""
    lines: list[str] = []
    while cell_len(text) > width:
        room = chop_cells(text[: 4 * width], width)[0] or text[0]
        end = max(room.rfind(" "), room.rfind("/")) + 1 or len(room)
        lines.append(text[:end])
        text = text[end:]
    return [*lines, text]
