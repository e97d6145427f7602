"""Metrics of a rank: each call appends one JSON line to the file `$RANKDECK_METRICS`. A file instead of a pipe, so that a rank never
waits for its reader; one `write` for each line in append mode, so that lines of several threads or forked processes do not mix. Nothing
here raises: reporting must not end the training."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from json.encoder import JSONEncoder

VARIABLE = "RANKDECK_METRICS"  # variable with the file's path; if missing or empty, `log` does nothing

MAX_FAILURES = 100
"""Failed writes in a row after which a process stops trying: a short-lived full disk costs only a few points, and a file that is gone
costs no further time."""

TEXT_LIMIT = 200  # characters kept of a value that is neither a number nor a string

_encode = JSONEncoder(separators=(",", ":")).encode
_PLAIN = frozenset({int, float, bool, str})


class _MetricsFile:
    def __init__(self, path: str) -> None:
        self.path = path
        self.fd: int | None = None
        self.failures = 0
        self.torn = False

    def append(self, line: bytes) -> bool:
        """Writes one line. Returns False after too many failures in a row."""
        try:
            if self.fd is None:
                self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # If a full disk cut the last line, end it first, so that this line is readable.
            data = b"\n" + line if self.torn else line
            written = os.write(self.fd, data)
        except OSError as error:
            # The next call opens the file again, which repairs a stale NFS handle.
            self.close()
            self.failures += 1
            if self.failures < MAX_FAILURES:
                return True
            sys.stderr.write(f"rankdeck.log: {self.path}: {error.strerror}; this rank reports no more metrics\n")
            return False
        if written == len(data):
            self.torn, self.failures = False, 0
        else:
            self.torn = self.torn or written > 0
        return True

    def close(self) -> None:
        fd, self.fd = self.fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


phase = ""  # what this rank does instead of training, as it has reported last; empty: it trains

_file: _MetricsFile | None = None
_looked = False


def log(*, step: object = None, loss: object = None, samples: object = None, **more: object) -> None:
    """Reports metrics of this rank, best once per step. Never raises; does nothing outside rankdeck.

    A value may be an int, a float (NaN and infinities too), a bool, a string, or whatever has `.item()`: a tensor or an
    array of one element, a numpy scalar. For a tensor on a GPU that waits for the GPU, as `.item()` does everywhere. Anything else becomes
    the first 200 characters of its `str()`. `None` stands for "not given".

    Any name may be used and becomes a series; these mean something to rankdeck:

    Args:
        step: the step just finished, counted from 1.
        loss: loss of that step, as this rank sees it.
        samples: that this rank has trained on since its last call; shown as samples/s.
        **more:
            `tokens`: like `samples`; shown as tok/s.
            `steps`: how many there will be in all; makes a progress bar.
            `checkpoint`: step of the checkpoint just written.
            `lr`: learning rate.
            `phase`: what this rank does instead of training, such as "eval", until its next step or `phase="train"`: it is not
                taken as stalled meanwhile.
    """
    global phase
    if "phase" in more:
        phase = "" if more["phase"] == "train" else str(more["phase"])
    elif step is not None:
        phase = ""
    file = _file if _looked else _open()
    if file is None:
        return
    # Examples: a value whose `__str__` or `.item()` raises, an integer too long to print, a closed stderr.
    try:
        record: dict[str, object] = {"t": 0.0, "step": step, "loss": loss, "samples": samples, **more}
        for name, value in record.items():
            if type(value) not in _PLAIN and value is not None:
                record[name] = _plain(value)
        # Set last, so that a caller's metric named "t" can't replace it.
        record["t"] = time.time()
        line = _encode({name: value for name, value in record.items() if value is not None})
        if not file.append(line.encode("ascii") + b"\n"):
            _turn_off()
    except Exception:  # noqa: BLE001 - see above
        return


def _plain(value: object) -> int | float | str:
    try:
        item = getattr(value, "item", None)
        found = item() if item is not None else value
    except Exception:  # noqa: BLE001 - a tensor of several elements, a mock, a GPU that has failed: shown as text
        found = value
    if isinstance(found, (int, float)):
        return found
    try:
        return str(found)[:TEXT_LIMIT]
    except Exception:  # noqa: BLE001 - from `__str__`; the other values of the line are still valid
        return f"<{type(found).__name__}>"


def _open() -> _MetricsFile | None:
    """Reads the variable, once in each process."""
    global _file, _looked
    path = os.environ.get(VARIABLE)
    _file = _MetricsFile(path) if path else None
    _looked = True
    return _file


def _turn_off() -> None:
    global _file
    if _file is not None:
        _file.close()
    _file = None


def _start_afresh() -> None:
    """Runs in a forked child: the template sets the variable between fork and script, so it is read again."""
    global _looked
    _turn_off()
    _looked = False


os.register_at_fork(after_in_child=_start_afresh)
