"""Textual's terminal driver, mended for terminals that come and go.

After a tmux re-attach, a reconnected ssh or a reloaded editor, a terminal may have forgotten that mouse reports were asked
for in the SGR form, and sends the X10 form: three bytes, which past column 95 are not UTF-8. Textual 8.2.8 ends the app with
UnicodeDecodeError (textual#6668, its fix #6696 is open), and would take the bytes for keys otherwise: a mouse at column 88
types `x`. Reports of that form are dropped here, and the terminal is asked for the SGR form again.
"""

import codecs
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial

from textual.drivers import linux_driver

_X10_REPORT = re.compile(rb"\x1b\[M[\x20-\xff]{3}", re.DOTALL)
_BEGUN_REPORT = re.compile(rb"\x1b\[M[\x20-\xff]{0,2}\Z", re.DOTALL)
REPEAT = 1.0  # seconds between two requests for the SGR form, which not every terminal has


class InputDecoder(codecs.IncrementalDecoder):
    """Decodes a terminal's input to text. It never fails, and it drops X10 mouse reports."""

    reported: Callable[[], None] | None = None  # called after reports were dropped

    ended: Callable[[], None] | None = None  # called at the end of the input: the terminal has gone

    def __init__(self, errors: str = "replace") -> None:
        super().__init__(errors)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = b""

    def decode(self, data: bytes, final: bool = False) -> str:  # type: ignore[override]  # typeshed: Buffer
        """The text so far. A report that is cut off is kept for the next call."""
        if not data and self.ended is not None:
            self.ended()
        data, dropped = _X10_REPORT.subn(b"", self._begun + data)
        begun = None if final else _BEGUN_REPORT.search(data)
        self._begun = begun.group() if begun else b""
        if dropped and self.reported is not None:
            self.reported()
        return self._utf8.decode(data[: begun.start()] if begun else data, final)


def leave_at_once() -> None:
    """Ends the process where its terminal is gone and no SIGHUP came: there is nothing to put away, and no run needs it."""
    os._exit(128 + signal.SIGHUP)


class RankdeckDriver(linux_driver.LinuxDriver):
    """Survives the mouse of a terminal that was exchanged, a SIGCONT that follows no SIGTSTP, and both at any moment. A signal handler
    runs between two instructions of the main thread. If that holds the lock of the writer's queue, a handler that writes waits for it
    forever, as Textual's own do. So the handlers leave their work to the event loop."""

    _asked_at = 0.0

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        # Without a handler the process ends at once, and leaves the terminal with the mouse on, in the other screen.
        ending = partial(self._app.exit, return_code=128 + signal.SIGTERM)
        self._loop.add_signal_handler(signal.SIGTERM, ending)

    def run_input_thread(self) -> None:
        class Decoder(InputDecoder):
            reported = staticmethod(self._ask_for_sgr_mouse)
            ended = staticmethod(leave_at_once)

        # The decoder is looked up by this name when the thread starts; there is no other way to exchange it.
        vars(linux_driver)["getincrementaldecoder"] = lambda _encoding: Decoder
        super().run_input_thread()

    def _ask_for_sgr_mouse(self) -> None:
        if time.monotonic() - self._asked_at >= REPEAT:
            self._asked_at = time.monotonic()
            self._enable_mouse_support()

    def _sigtstp_application(self, *_: object) -> None:
        self._in_loop(super()._sigtstp_application)

    def _sigcont_application(self, *_: object) -> None:
        self._in_loop(self._resume)

    def _in_loop(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the app ends
            self._loop.call_soon_threadsafe(work)

    def _resume(self) -> None:
        """Resumes. After SIGSTOP nothing was put away: Textual would start a second reader and lose the tty's settings. Neither way does
        it paint the screen that `fg` finds empty."""
        if self._must_signal_resume:
            super()._sigcont_application()
        elif self._auto_restart and self._key_thread is not None and self._key_thread.is_alive():
            self._enable_mouse_support()
        else:
            return
        self._app.call_later(self._app.refresh, layout=True)
