"""Ranks of an elastic training without a run around them: the test tells them the news that a supervisor would."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch.distributed as dist

from engine.supervisor.nodes.store_keys import signature
from rankdeck.store_host import PREFIX, publish
from tests.support import ROOT, SLOWEST, entries, wait_until
from tests.warm_ranks import Forked, Template, template

NO_NUMPY = entries("rank/elastic_ranks", "no_numpy")  # a `sitecustomize` that hides numpy


class Ranks:
    """The ranks of one training, the store in which they meet, and what they are told.

    Args:
        folder: where they run, and where their output is.
        argv: what each of them runs, after `python`.
        world: how many ranks there are.
        template: forks them, if it is not to be the one of all tests.
        secret: signs what is in the store; empty: nothing is signed.
    """

    def __init__(
        self, folder: Path, argv: list[str], world: int, template: Template | None = None, secret: str = ""
    ) -> None:
        self.folder, self._argv, self._world, self._template = folder, argv, world, template
        self._secret = secret
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=600)
        )
        self._told = 0
        self._processes: dict[tuple[int, int], Forked] = {}

    def start(self, rank: int, generation: int = 0) -> Forked:
        """Starts the process that takes part as this rank from this generation on."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKDECK_")}
        environment |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # torch need not make one
            "RANKDECK_BACKEND": "gloo",
            "RANKDECK_TIMEOUT": "300",
            "RANKDECK_GENERATION": str(generation),
            "RANKDECK_HANDOVER": str(self.folder / f"{rank}.state"),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            **({"RANKDECK_STORE_KEY": self._secret} if self._secret else {}),
        }
        file = self._file(rank, generation)
        process = (self._template or template()).start(self._argv, environment, self.folder, file)
        self._processes[rank, generation] = process
        return process

    def tell(self, word: Literal["lost", "generation"], generation: int) -> None:
        """Tells all ranks that a generation has `lost` a rank, or that this `generation` begins."""
        signed = (signature(self._secret, self._told, (word, generation)),) if self._secret else ()
        publish(self._store, self._told, (word, generation, self._world, *signed))
        self._told += 1

    def forge(self, key: str, text: str) -> None:
        """Writes into the store as a stranger can."""
        self._store.set(f"{PREFIX}/{key}", text)

    def said(self, rank: int, generation: int = 0) -> str:
        """The output so far of the process that was started for this generation."""
        return self._file(rank, generation).read_text(errors="replace")

    def wait_for(self, text: str, rank: int, generation: int = 0) -> None:
        """Waits until that process has written this."""
        process = self._processes[rank, generation]
        wait_until(lambda: text in self.said(rank, generation) or process.poll() is not None, 60, f"{text!r}")
        assert text in self.said(rank, generation), self.said(rank, generation)

    def poll(self, rank: int, generation: int = 0) -> int | None:
        """The exit status of that process; None: it has not ended."""
        return self._processes[rank, generation].poll()

    def end(self, rank: int, generation: int = 0) -> int:
        """Waits for the end of that process. Returns its exit status."""
        try:
            return self._processes[rank, generation].wait(60 * SLOWEST)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {rank} has not ended: {self.said(rank, generation)}") from None

    def close(self) -> None:
        """Leaves no process behind."""
        for process in self._processes.values():
            process.kill()
            process.wait(60 * SLOWEST)

    def _file(self, rank: int, generation: int) -> Path:
        return self.folder / f"{rank}.{generation}.log"


def without_numpy(folder: Path) -> Template:
    """A template that finds no numpy, and whose ranks find none. Close it. `folder`: is made, and comes first on the path."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(NO_NUMPY)
    return Template(path=f"{folder}:{ROOT}")
