"""How commands print: tables and JSON on standard output, remarks and errors on standard error."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from engine.commands.bars import LiveBars
from engine.core.errors import RankdeckError, UsageError
from engine.core.plan.plan import LaunchPlan
from engine.core.terminal_text import terminal_line

_live: list[LiveBars] = []  # bars that are being drawn on the terminal


def draw_bars(bars: LiveBars) -> None:
    """From now on, whatever is printed removes these bars first."""
    _live.append(bars)


def make_room() -> None:
    """Removes bars from the terminal, before something is printed. They are drawn again below it."""
    for bars in _live:
        bars.hide()


def print_json(value: object) -> None:
    """A value as JSON, indented."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_line(text: str, *, err: bool = False) -> None:
    """One line, without colours and control characters, which foreign text may contain."""
    make_room()
    click.echo(terminal_line(text, colour=False), err=err)


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as their widest cell on a terminal; trailing spaces are left out."""
    lines = [[terminal_line(cell, colour=False) for cell in row] for row in rows]
    widths = [max(map(_cells, column)) for column in zip(*lines, strict=True)]
    padded = ([cell + " " * (width - _cells(cell)) for cell, width in zip(line, widths, strict=True)] for line in lines)
    click.echo("\n".join("  ".join(cells).rstrip() for cells in padded))


def _cells(text: str) -> int:
    """How many cells of a terminal a text takes: Chinese characters take two, combining accents none."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth  # importing it takes 40 ms, and most tables do not need it

    return wcswidth(text)


def narrate(text: str) -> None:
    """A remark about a run, on standard error, apart from what its ranks print."""
    make_room()
    click.echo(f"rankdeck: {terminal_line(text, colour=False)}", err=True)


def complain(error: RankdeckError) -> None:
    """An error on standard error: the fact, then the next step."""
    for number, line in enumerate(str(error).split("\n")):
        print_line(f"rankdeck: {line}" if number == 0 else line, err=True)


def new_file(path: Path) -> BinaryIO:
    """Opens a new file for this user only. Raises UsageError: the path exists; RankdeckError: it can't be written."""
    if path.exists():
        raise UsageError(f"{path} exists", hint="remove it, or choose another file with --output")
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except OSError as error:
        raise RankdeckError(f"{path} can't be written: {error.strerror}") from None


def confirm(question: str, refused: str) -> None:
    """Asks on the terminal, and ends the command on anything but yes. Raises UsageError with `refused` if there is no terminal."""
    if not sys.stdin.isatty():
        raise UsageError(f"{refused}: there is no terminal to confirm it", hint="add --yes to do it without a question")
    click.confirm(question, default=False, abort=True)


def warn(plan: LaunchPlan) -> None:
    """The warnings of a plan and the message of the site, on standard error."""
    for line in plan.message.splitlines():
        narrate(line)
    for warning in plan.warnings:
        narrate(f"warning: {warning.line}")


def close_stdout() -> None:
    """Discards buffered output after the reader has closed the pipe, so that flushing it at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
