"""The last output of ranks: the ends of their files, which the regular reading may not have reached yet."""

import json
from collections.abc import Callable, Iterator

from engine.core.metrics.progress import RankProgress
from engine.core.wire.agent import LARGEST
from engine.runs.paths import RunPaths, Stream
from engine.runs.record import read_tail

RECORDS = 4096  # bytes of the end of a metrics file that are read


class LastOutput:
    """The ends of the files of a run's current attempt. `progress`: Progress of a rank, as far as its files were read."""

    def __init__(self, paths: RunPaths, progress: Callable[[int], RankProgress]) -> None:
        self._paths, self._progress = paths, progress
        self.attempt = 0
        self.told_errors: dict[int, bytes] = {}
        """The end of ranks' stderr as their nodes reported it, because not all of it may be stored here yet."""

    def start_attempt(self, attempt: int) -> None:
        self.attempt = attempt
        self.told_errors.clear()

    def tail(self, rank: int, stream: Stream) -> bytes:
        """The last bytes of the output of a rank of this attempt."""
        return read_tail(self._paths.log(self.attempt, rank, stream))

    def errors(self, rank: int) -> bytes:
        """The end of a rank's stderr: as its node reported it, else as it is stored here."""
        return self.told_errors.get(rank) or self.tail(rank, "err")

    def is_joining(self, rank: int, told: bytes = b"") -> bool:
        """Whether a rank was setting up its process group when it last reported; the arguments are those of `step`."""
        for record in self._records(rank, told):
            for word in ("joined", "joining"):
                if record.get(word) is True:
                    return word == "joining"
        return self._progress(rank).meeting == "joining"

    def step(self, rank: int, told: bytes = b"") -> int | None:
        """The last step that a rank reported. `told`: the end of its metrics file, if its node reported it."""
        for record in self._records(rank, told):
            step = record.get("step")
            if type(step) is int and abs(step) <= LARGEST:
                return step
        return self._progress(rank).step

    def _records(self, rank: int, told: bytes) -> Iterator[dict[str, object]]:
        """The records at the end of a rank's metrics file, from the last."""
        end = told or read_tail(self._paths.metrics(self.attempt, rank), RECORDS)
        for line in reversed(end.splitlines()):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # a rank may write anything
            if isinstance(record, dict):
                yield record
