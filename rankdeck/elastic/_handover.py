"""A file in which a rank that must end leaves its state to the process that replaces it."""

from __future__ import annotations

import contextlib
import os
import sys

from rankdeck.elastic._share import Standing
from rankdeck.elastic._state import State


class Handover:
    """The file `$RANKDECK_HANDOVER`. It is trusted, because only the user can write into a run's folder."""

    def __init__(self, state: State, standing: Standing) -> None:
        self._path = os.environ.get("RANKDECK_HANDOVER", "")
        self._state, self._standing = state, standing

    def write(self) -> None:
        """Writes this rank's state, without publishing it. Raises any error of writing."""
        import torch

        if not self._path or self._standing.fresh:
            return  # this process has not trained
        self._state._return()
        saved = (self._state._commits, self._state._fault, self._state._read())
        with open(os.open(self._path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save(saved, file)

    def publish(self) -> None:
        """Publishes the written state, for the next process."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._path + ".new", self._path)

    def discard(self) -> None:
        """Removes the written state if it was not published."""
        with contextlib.suppress(OSError):
            os.unlink(self._path + ".new")

    def take(self) -> None:
        """Takes the state that the previous process has published, if any."""
        import torch

        try:
            commits, fault, values = torch.load(self._path, weights_only=False)
        except FileNotFoundError:
            return
        except Exception as error:  # noqa: BLE001 - the unpickler may raise anything for a truncated file
            sys.stderr.write(
                f"rankdeck: rank {self._standing.rank} can't read the state that it was handed over: {error}\n"
            )
            return
        self._state._take(commits, values)
        self._state._fault = fault
        if commits:
            self._state._keep()
        self._standing.fresh = False

    def remove(self) -> None:
        """Removes the published state, after other ranks have received it."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
