"""The gate: without a `Permit` nothing starts and nothing connects for a profile before its launch.

`engine.planning.trust` decides who gets which permit. Each function that starts a process or connects takes one, and shows it the words
that may name programs; so a new function can't forget to ask.
"""

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterable

import msgspec

from engine.core.errors import NotTrustedError

NOT_LOOKED_UP = "not looked up: this folder is not trusted"
"""Said of a plan for which nothing was started. The key or command that trusts it follows."""

_PIECE = re.compile(r"[^\s;|&()<>{}'\"`=,:]+")


class Permit(msgspec.Struct, frozen=True):
    """The permit of one profile: the processes and connections that may start for it.

    Attributes:
        may_start: False: nothing at all.
        closed: a folder in which nothing may run, as a real path; empty: none.
    """

    may_start: bool
    closed: str = ""

    def admit(self, *words: str) -> None:
        """Raises NotTrustedError if nothing may start, or if these words name something in the closed folder. `words`: programs, options, shell lines
        and values of variables that decide what runs."""
        if not self.may_start:
            raise NotTrustedError(NOT_LOOKED_UP)
        if self.closed and (found := inside(self.closed, words)):
            raise NotTrustedError(f"{NOT_LOOKED_UP}, and {found[0]} lies there")

    def program(self, name: str) -> str:
        """The path of a program that may start: relative folders on PATH are left out. Use it as `executable` of a process.

        Raises:
            NotTrustedError: it may not.
            OSError: there is no such program.
        """
        self.admit()
        found = name if os.sep in name else which(name)
        if found is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self.admit(found)
        return found

    @property
    def cwd(self) -> str | None:
        """The folder in which a process starts: `/` if a folder is closed, so that no relative name finds what lies there; None: the current one."""
        return "/" if self.closed else None


CLOSED = Permit(may_start=False)  # for a profile that somebody else may have written
LAUNCHED = Permit(may_start=True)  # for a profile that the user has launched or trusted, and for runs


def which(program: str, path: str | None = None) -> str | None:
    """Like `shutil.which`, without relative folders: what lies in the current one is not the user's choice.

    Args:
        program: its name.
        path: folders as in PATH; None: PATH of the environment.
    """
    folders = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    return shutil.which(program, path=os.pathsep.join(filter(os.path.isabs, folders)))


def inside(folder: str, words: Iterable[str]) -> list[str]:
    """The paths in a folder that words name, as absolute paths: alone, in an option, in a shell line or in a search path.

    Relative names count if they exist in the folder. Environments that the user has activated do not count.

    Args:
        folder: an absolute path.
        words: what may name them.
    """
    found: dict[str, None] = {}
    for word in words:
        pieces = [word, *_PIECE.findall(word)]
        if ":" in word and "" in word.split(":"):  # an empty entry of a search path is the current folder
            pieces.append(os.curdir)
        for piece in [*pieces, *(piece[2:] for piece in pieces if piece.startswith("-"))]:
            text = os.path.expandvars(os.path.expanduser(piece))
            if not text or "\0" in text:
                continue
            path = os.path.abspath(os.path.join(folder, text))
            is_named = os.path.isabs(text) or text.startswith(("./", "../")) or os.path.lexists(path)
            if is_named and _lies_in(folder, path, is_relative=not os.path.isabs(text)):
                found[path] = None
    return list(found)


def _lies_in(folder: str, path: str, *, is_relative: bool) -> bool:
    chosen = (sys.prefix, os.environ.get("VIRTUAL_ENV", ""), os.environ.get("CONDA_PREFIX", ""))
    if any(os.path.isabs(root) and _is_below(path, os.path.abspath(root)) for root in chosen):
        return False
    return is_relative or _is_below(path, folder) or _is_below(os.path.realpath(path), folder)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
