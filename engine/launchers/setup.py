"""Runs the user's `launch.setup` lines in a login shell before a command on a node.

The lines may contain secrets, and every user of a machine can read the command lines of its processes. So the lines travel as the
first line of standard input: `with_setup` makes the command, `setup_input` what is written before everything else.
"""

import re
from collections.abc import Sequence

from engine.core.failures.ssh import EXIT_SETUP_FAILED

_LOGIN_SHELL = ("sh", "-c", 'exec bash -lc "$0" "$@" 8<&0 9>&1 </dev/null >&2')
"""Runs a login shell, which knows `module` and `conda`, with the words that follow. Standard input and output are a wire that the
user's login files must not use, so they become descriptors 8 and 9."""

_SCRIPT = (
    f'trap "set +e; exit {EXIT_SETUP_FAILED}" EXIT; rankdeck_command=("$@"); IFS= read -r rankdeck_setup <&8 || exit; '
    'printf -v rankdeck_setup %b "$rankdeck_setup"; eval "unset rankdeck_setup; set --; $rankdeck_setup" 8<&- 9>&-; '
    'test $? = 0 || exit; trap - EXIT; exec "${rankdeck_command[@]}" <&8 >&9 8<&- 9>&-'
)
"""The login shell reads the user's lines, runs them, and becomes the command in the environment that they made.
bash reads a pipe byte by byte, so everything after the first line is left for the command. The lines see no arguments, because a
script that they source would take the command's for its own. The exit status tells that they failed, even if they `exit` or
`set -e`. The script is one line without single quotes, backslashes and `!`, so every login shell accepts it as a word."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9 _./:;=,+@-]")


def with_setup(setup: str, command: Sequence[str]) -> list[str]:
    """The command that runs the user's lines first; the same command if there are none. Raises ValueError: the lines contain a NUL byte."""
    if "\0" in setup:
        raise ValueError("launch.setup contains a NUL byte")
    return [*_LOGIN_SHELL, _SCRIPT, "setup", *command] if setup else list(command)


def setup_input(setup: str) -> bytes:
    """The bytes that a command made by `with_setup` must receive first on its standard input; empty without shell lines."""
    if not setup:
        return b""
    return _UNSAFE.sub(lambda byte: b"\\0%03o" % byte[0][0], setup.encode("utf-8", "surrogateescape")) + b"\n"
