"""A rank's metrics: one JSON line per call, appended to the file that `$RANKDECK_METRICS` names.

A file and not a pipe, so that a rank never waits for anything of ours; one `write` per line in append mode, so that lines of
several threads or forked processes never mix. Measuring must not break what it measures: nothing here raises.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from json.encoder import JSONEncoder

VARIABLE = "RANKDECK_METRICS"
"""Names the file; where it is missing or empty, `log` does nothing."""

PATIENCE = 100
"""Failed writes in a row after which a process stops trying: a full disk that is cleared soon costs a few points only, and
a file that is gone for good costs nothing more."""

TEXT_LIMIT = 200
"""Characters kept of a value that is neither a number nor a string: enough to recognise it, too few to flood a link."""

_encode = JSONEncoder(separators=(",", ":")).encode
_PLAIN = frozenset({int, float, bool, str})


class _MetricsFile:
    """The metrics file of this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd: int | None = None
        self.failures = 0
        self.torn = False

    def append(self, line: bytes) -> bool:
        """Writes one line.

        Returns:
            False when it has failed so often that it is not worth another try.
        """
        try:
            if self.fd is None:
                self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # A disk that fills up in the middle of a line must not spoil the line after it.
            data = b"\n" + line if self.torn else line
            written = os.write(self.fd, data)
        except OSError as error:
            # The next try opens the file anew, which cures a stale NFS handle.
            self.close()
            self.failures += 1
            if self.failures < PATIENCE:
                return True
            sys.stderr.write(f"rankdeck.log: {self.path}: {error.strerror}; this rank reports no more metrics\n")
            return False
        if written == len(data):
            self.torn, self.failures = False, 0
        else:
            self.torn = self.torn or written > 0
        return True

    def close(self) -> None:
        """Lets go of the file."""
        fd, self.fd = self.fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


_file: _MetricsFile | None = None
_looked = False


def log(*, step: object = None, loss: object = None, samples: object = None, **more: object) -> None:
    """Reports metrics of this rank, best once per step. Never raises; does nothing outside rankdeck.

    A value may be an int, a float (NaN and infinities too), a bool, a string, or whatever has `.item()`: a tensor or an
    array of one element, a numpy scalar. For a tensor on a GPU that waits for the GPU, as `.item()` does everywhere. Of
    anything else the first 200 characters of `str()` are kept. None stands for "not given".

    Any name may be used and becomes a series; these mean something to rankdeck:

    Args:
        step: the step just finished, counted from 1.
        loss: of that step, as this rank sees it.
        samples: that this rank has trained on since its last call; shown as samples/s.
        **more:
            `tokens`: like `samples`; shown as tok/s.
            `steps`: how many there will be in all; makes a progress bar.
            `checkpoint`: step of the checkpoint just written.
            `lr`: learning rate.
    """
    file = _file if _looked else _open()
    if file is None:
        return
    # Metrics are never worth a training run: a value whose `__str__` or `.item()` raises, an integer too long to print or
    # a closed stderr is the caller's or the machine's affair, and there is nobody here who could be told.
    try:
        record: dict[str, object] = {"t": 0.0, "step": step, "loss": loss, "samples": samples, **more}
        for name, value in record.items():
            if type(value) not in _PLAIN and value is not None:
                record[name] = _plain(value)
        # After the caller's names, so that one called "t" can't move the line in time.
        record["t"] = time.time()
        line = _encode({name: value for name, value in record.items() if value is not None})
        if not file.append(line.encode("ascii") + b"\n"):
            _turn_off()
    except Exception:  # noqa: BLE001 - see above
        return


def _plain(value: object) -> int | float | str:
    """A value that JSON has."""
    try:
        item = getattr(value, "item", None)
        found = item() if item is not None else value
    except Exception:  # noqa: BLE001 - a tensor of several elements, a mock, a GPU that has failed: shown as text
        found = value
    if isinstance(found, (int, float)):
        return found
    try:
        return str(found)[:TEXT_LIMIT]
    except Exception:  # noqa: BLE001 - the caller's `__str__`; the other values of the line are still good
        return f"<{type(found).__name__}>"


def _open() -> _MetricsFile | None:
    """Looks for the variable, once per process."""
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
    """In a forked child: looks again, since a template sets the variable between fork and script."""
    global _looked
    _turn_off()
    _looked = False


os.register_at_fork(after_in_child=_start_afresh)
