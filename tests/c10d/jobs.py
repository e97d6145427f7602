"""Jobs of real ranks over a backend of ours: each rank runs the text of a script."""

import textwrap
from pathlib import Path

from tests.c10d.mpirun import need_mpi, run_job
from tests.support import PATIENCE, entries
from tests.ucc.ranks import run_ranks
from tests.ucc.system import need_ucc
from tests.warm_ranks import Done

IMPORTS = entries("c10d/jobs", "imports")

MEETS = entries("c10d/jobs", "meets")
"""How the ranks of each backend meet."""

WORDS = entries("c10d/jobs", "words")

NAMES = {"mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), "ucc": ("RANK", "WORLD_SIZE")}
"""Variables of rank and world size."""

COMPLAINTS = ("Traceback", "ERROR", "aborts the MPI job")


class Job:
    """Runs the text of a script on some ranks: `job(2, text)`. Skips the test where that can't be done. `backend`: "mpi" or "ucc". `folder`: for the
    script; it is also its first argument."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.backend, self._folder = backend, folder
        need_mpi() if backend == "mpi" else need_ucc()

    def __call__(self, ranks: int, text: str, *, anew: bool = False) -> Done:
        """Waits for the end. `anew`: mpirun itself starts the ranks of MPI, and sees how their processes end."""
        script = self._folder / "script.py"
        preamble = (
            IMPORTS.format(backend=self.backend, names=NAMES[self.backend], longest=2 * PATIENCE)
            + MEETS[self.backend]
            + WORDS
        )
        script.write_text(preamble + textwrap.dedent(text))
        if self.backend == "mpi":
            return run_job(ranks, script, str(self._folder), warm=not anew)
        return run_ranks(ranks, script, str(self._folder))


def said(done: Done, rank: int) -> list[str]:
    """The lines of one rank."""
    mark = f"[{rank}] "
    return [line.removeprefix(mark) for line in done.stdout.splitlines() if line.startswith(mark)]


def check_all_well(done: Done) -> None:
    """All have ended with success, and nobody complained."""
    assert done.returncode == 0, done.stdout + done.stderr
    for complaint in COMPLAINTS:
        assert complaint not in done.stderr, done.stderr
