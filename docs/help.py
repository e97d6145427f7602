"""Writes `docs/help.md`: what `rankdeck --help` and `rankdeck COMMAND --help` print.

`python docs/help.py` writes the page; `python docs/help.py --check` only tells whether it is current, by its exit status. Spaces and the
ends of lines do not count, because they depend on the version of click.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DOCUMENT = ROOT / "docs" / "help.md"

WIDTH = 100  # columns of the text

from engine.commands.cli import cli  # noqa: E402


def page() -> str:
    """The whole page."""
    head = "# Help of every command\n\nMade by `docs/help.py` from the command itself. [Commands](commands.md) explains them by purpose.\n"
    parts = [f"## {name}\n\n```text\n{text.rstrip()}\n```\n" for name, text in helps(cli, "rankdeck", None)]
    return "\n".join([head, *parts])


def helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """The help of a command and of those below it.

    Args: command: the command.
        name: its words.
        parent: of the group that it belongs to.

    Yields:
        Words of a command, and its help.
    """
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    own = click.Context(command, parent, info_name=name.split()[-1], **settings)
    yield name, command.get_help(own)
    if isinstance(command, click.Group):
        for word in command.list_commands(own):
            below = command.get_command(own, word)
            if below is not None and not below.hidden:
                yield from helps(below, f"{name} {word}", own)


def main() -> int:
    """Writes the page, or checks it. Returns the exit status."""
    wanted = page()
    if "--check" in sys.argv:
        return int(wanted.split() != DOCUMENT.read_text(encoding="utf-8").split())
    DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
