"""A file in which a rank that can't go on leaves its state to the process that takes its place."""

from __future__ import annotations

import contextlib
import copy
import os
import sys

from rankdeck.elastic._standing import Standing
from rankdeck.elastic._state import State


class Handover:
    """The file that `RANKDECK_HANDOVER` names. Nobody else can write into a run's folder, so what is in it is trusted."""

    def __init__(self, state: State, standing: Standing) -> None:
        self._path = os.environ.get("RANKDECK_HANDOVER", "")
        self._state, self._standing = state, standing

    def write(self) -> None:
        """Writes this rank's state, but does not publish it yet. Raises whatever writing it raises."""
        import torch

        if not self._path or self._standing.fresh:
            return  # there is nothing to lose
        committed = self._state._committed
        values = committed if committed is not None else self._state._values()
        with open(os.open(self._path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save((self._state._commits, values), file)

    def publish(self) -> None:
        """Makes what was written the state that the next process takes."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._path + ".new", self._path)

    def discard(self) -> None:
        """Removes what was written and not published."""
        with contextlib.suppress(OSError):
            os.unlink(self._path + ".new")

    def take(self) -> None:
        """Takes the state that the process before this one has published, if it has."""
        import torch

        try:
            commits, values = torch.load(self._path, weights_only=False)
        except FileNotFoundError:
            return
        except Exception as error:  # noqa: BLE001 - a file that was cut off makes the unpickler raise anything
            sys.stderr.write(
                f"rankdeck: rank {self._standing.rank} can't read the state that it was handed over: {error}\n"
            )
            return
        self._state._take(values)
        self._state._commits = commits
        if commits:
            self._state._committed = copy.deepcopy(values)
        self._standing.fresh = False

    def remove(self) -> None:
        """Removes the published state, once other ranks have it too."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
