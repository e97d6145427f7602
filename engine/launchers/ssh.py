"""ssh: a command on another machine, by the user's own OpenSSH, with the user's own configuration.

ssh hands one string to whatever login shell the user has there. It is made here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.core.plan.plan import Reach
from engine.launchers.local import with_setup

CONNECT_TIMEOUT = 15
"""Seconds to a finished key exchange: enough for a lost packet or two and a loaded node, and well within what the link waits
for an agent, so that a dead node is told from a slow Python. A `ConnectTimeout` of ~/.ssh/config is overridden by this, since
nothing but another process could ask for it; one in `layout.ssh_options` is not."""

OPTIONS = (
    "-T",  # a terminal would change bytes
    "-x",
    "-o", "BatchMode=yes",  # nobody is there to be asked
    "-o", f"ConnectTimeout={CONNECT_TIMEOUT}",
    "-o", "ClearAllForwardings=yes",  # a forwarded port is taken as soon as a second connection wants it
    "-o", "ControlMaster=no",  # a connection that is shared already is used; sessions of the user never depend on ours
    "-o", "PermitLocalCommand=no",  # it would have this process's standard input and output
    "-o", "LogLevel=INFO",  # QUIET hides what `failures.ssh` reads, DEBUG would fill the pipe
)  # fmt: skip
"""What must be so whatever ~/.ssh/config says. All else is the user's: keys, jump hosts, host key checking, agent forwarding.
The user's `layout.ssh_options` stand before these, and ssh takes the first value that it is given. Nothing newer than
OpenSSH 6.0 is among them: an option that ssh does not know ends it."""

_NODE = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_:][A-Za-z0-9_.:-]*")
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@+-]+")
"""Words that no shell changes. Not among them although `shlex.quote` leaves them alone: `=`, since zsh makes a path of
`=ls`, and `%`, since fish makes a number of `%self`."""

_UNEQUAL = re.compile(r"[^ -~]|[!\\]")
"""What shells read differently even inside single quotes: tcsh ends a word at a line feed and looks for `!` in its history,
fish drops backslashes, and bytes beyond ASCII depend on a locale."""

_DECODER = 'sh -c \'eval "$(printf %b "$1")"\' sh'


def argv(node: str, command: Sequence[str], reach: Reach) -> list[str]:
    """ssh, the user's options, ours, the node, and the command as one string for its login shell.

    Raises:
        ValueError: a node that ssh might take for anything but a node, or a word with a NUL byte.
    """
    if not _NODE.fullmatch(node):
        raise ValueError(f"{node!r} can't be a node")
    return ["ssh", *reach.ssh_options, *OPTIONS, "--", node, remote_line(command, reach.setup)]


def remote_line(command: Sequence[str], setup: str) -> str:
    """A line that bash, dash, zsh, tcsh and fish all read as: become this command.

    Only ASCII, on one line. What shells disagree about is written in octal, for `sh` to read; the rest stays legible.

    Args:
        command: its words. `~/` at the beginning of the first one is the home on the node.
        setup: shell lines that come before; may be empty.

    Raises:
        ValueError: a word with a NUL byte.
    """
    program, *arguments = command
    words = [*map(_quoted, with_setup(setup, [])), _quoted_program(program), *map(_quoted, arguments)]
    line = "exec " + " ".join(words)
    if "\0" in line:
        raise ValueError("a word of the command holds a NUL byte")
    if not _UNEQUAL.search(line):
        return line
    return f"exec {_DECODER} '{''.join(map(_octal, line))}'"


def _quoted(word: str) -> str:
    """One word, however little it is meant for a shell."""
    return word if _PLAIN.fullmatch(word) else "'" + word.replace("'", "'\"'\"'") + "'"


def _quoted_program(word: str) -> str:
    return f'"$HOME"/{_quoted(word[2:])}' if word.startswith("~/") else _quoted(word)


def _octal(one: str) -> str:
    """A character as `printf %b` takes it, where it is not the same everywhere or would end the quotes around it."""
    if one != "'" and not _UNEQUAL.match(one):
        return one
    return "".join(f"\\0{byte:03o}" for byte in one.encode("utf-8", "surrogateescape"))
