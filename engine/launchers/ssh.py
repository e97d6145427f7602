"""Launches commands on other machines with the user's own OpenSSH and its configuration.

ssh passes one string to the user's login shell there. Only this module builds it.
"""

import re
from collections.abc import Sequence

from engine.core.plan.plan import Reach
from engine.launchers.setup import with_setup

CONNECT_TIMEOUT = 15
"""Seconds until the key exchange is complete: enough for a lost packet or two on a loaded node, and well below the time that a link
waits for an agent, so a dead node can be told from a slow Python. This overrides a `ConnectTimeout` in ~/.ssh/config, but not
one in `layout.ssh_options`."""

OPTIONS = (
    "-T",  # a terminal changes bytes
    "-x",
    "-o", "BatchMode=yes",  # nobody can answer questions
    "-o", f"ConnectTimeout={CONNECT_TIMEOUT}",
    "-o", "ClearAllForwardings=yes",  # a second connection could not use the same port
    "-o", "ControlMaster=no",  # uses an existing shared connection, but never makes one that the user's sessions depend on
    "-o", "PermitLocalCommand=no",  # a local command would get this process's standard input and output
    "-o", "LogLevel=INFO",  # QUIET hides the errors that `engine.core.failures.ssh` reads, DEBUG fills the pipe
)  # fmt: skip
"""Options that override ~/.ssh/config. Everything else is left to the user: keys, jump hosts, host key checking, agent forwarding.
The user's `layout.ssh_options` come before these, and ssh uses the first value of an option. All of them exist since
OpenSSH 6.0; ssh exits at an unknown option."""

_NODE = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_:][A-Za-z0-9_.:-]*")
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@+-]+")
"""Words that no shell changes. `shlex.quote` also accepts `=` and `%`, but zsh expands `=ls` and fish expands `%self`."""

_UNEQUAL = re.compile(r"[^ -~]|[!\\]")
"""Characters that shells treat differently even inside single quotes: tcsh ends a word at a line feed and expands `!`, fish removes
backslashes, and non-ASCII bytes depend on the locale."""

_DECODER = 'sh -c \'eval "$(printf %b "$1")"\' sh'


def argv(node: str, command: Sequence[str], reach: Reach) -> list[str]:
    """The command line of ssh: the user's options, rankdeck's, the node, and the command as one string for the login shell. Raises ValueError: the
    node's name could be an option of ssh, or a word contains a NUL byte."""
    if not _NODE.fullmatch(node):
        raise ValueError(f"{node!r} is not a valid node name")
    return ["ssh", *reach.ssh_options, *OPTIONS, "--", node, remote_line(command, reach.setup)]


def remote_line(command: Sequence[str], setup: str) -> str:
    """A line with which bash, dash, zsh, tcsh and fish all execute the same command. It is one line of ASCII.

    Characters that shells treat differently are in octal, for `sh` to decode; the rest stays legible.

    `setup`: shell lines that run first; may be empty. They are not in the line: see `setup_input`. Raises ValueError: a word contains a NUL
    byte."""
    program, *arguments = command
    quoted = f'"$HOME"/{_quoted(program[2:])}' if program.startswith("~/") else _quoted(program)
    words = [*map(_quoted, with_setup(setup, [])), quoted, *map(_quoted, arguments)]
    line = "exec " + " ".join(words)
    if "\0" in line:
        raise ValueError("a word of the command contains a NUL byte")
    if not _UNEQUAL.search(line):
        return line
    return f"exec {_DECODER} '{''.join(map(_octal, line))}'"


def _quoted(word: str) -> str:
    """One word, quoted if necessary."""
    return word if _PLAIN.fullmatch(word) else "'" + word.replace("'", "'\"'\"'") + "'"


def _octal(one: str) -> str:
    """A character as `printf %b` decodes it, if shells treat it differently or it would end the surrounding quotes."""
    if one != "'" and not _UNEQUAL.match(one):
        return one
    return "".join(f"\\0{byte:03o}" for byte in one.encode("utf-8", "surrogateescape"))
