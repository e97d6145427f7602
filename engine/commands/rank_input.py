"""`run --stdin`: typed text goes to the only rank of a run, so that `input()`, `breakpoint()` and `pdb` work in it.

The rank's stdin is a named pipe, which a shell opens in front of the program.
"""

import array
import asyncio
import contextlib
import fcntl
import os
import secrets
import sys
import termios

from engine.runs.paths import runtime_folder

_OPENS = 'if [ -p "$0" ]; then exec "$@" <"$0"; else exec "$@" </dev/null; fi'
"""If there is no pipe, for example after a restart that no command follows, the rank reads nothing."""

RETRY = 0.05  # seconds between two tries to pass on text that the rank has no time to read
PIECE = 4096  # bytes that are read at once; at most this number waits besides the bytes in the pipe


class RankInput:
    """Passes standard input on to one rank, until its end."""

    def __init__(self) -> None:
        self._path = runtime_folder() / f"stdin-{secrets.token_hex(8)}"
        os.mkfifo(self._path, 0o600)
        # For reading too: the rank can open it at any time, and a write finds a reader.
        self._pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._waiting = b""
        self._has_ended = self._is_paused = False

    @property
    def wrap(self) -> tuple[str, ...]:
        """Words before the command line of the rank."""
        return ("/bin/sh", "-c", _OPENS, str(self._path))

    def listen(self) -> None:
        """Passes on text that comes from now on."""
        self._is_paused = False
        if not self._has_ended:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._take)

    def pause(self) -> None:
        """Leaves standard input to a question, until `listen`."""
        self._is_paused = True

    def _take(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), PIECE)
        except OSError:  # the terminal is gone
            data = b""
        self._has_ended = not data
        self._waiting += data
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._pass_on()

    def _pass_on(self) -> None:
        if self._pipe < 0:
            return
        loop = asyncio.get_running_loop()
        with contextlib.suppress(BlockingIOError):
            self._waiting = self._waiting[os.write(self._pipe, self._waiting) :] if self._waiting else b""
        if self._waiting or (self._has_ended and self._is_unread()):
            loop.call_later(RETRY, self._pass_on)
        elif self._has_ended:
            self.close()
        elif not self._is_paused:
            self.listen()

    def _is_unread(self) -> bool:
        """Whether the rank has not read everything, maybe because it has not opened the pipe yet."""
        count = array.array("i", [0])
        fcntl.ioctl(self._pipe, termios.FIONREAD, count)
        return count[0] > 0

    def close(self) -> None:
        """Ends the rank's input."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
