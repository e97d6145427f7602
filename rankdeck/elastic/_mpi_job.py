"""The MPI job of this rank: whether a generation can be over MPI, how its ranks meet there, and how they leave it after a loss."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rankdeck._process_group import init_process_group
from rankdeck.c10d._background import Background
from rankdeck.c10d._mpi import ulfm

if TYPE_CHECKING:
    from rankdeck.elastic._share import Arrival, Standing


class MpiJob:
    """The MPI job of one training. `is_lost`: returns whether this generation has lost a rank."""

    def __init__(self, standing: Standing, is_lost: Callable[[], bool]) -> None:
        self._standing, self._is_lost = standing, is_lost
        self._backend = os.environ["RANKDECK_BACKEND"]
        self._keeps_mpi = os.environ.get("RANKDECK_REJOIN") == "mpi"  # when a rank comes back
        is_possible = "mpi" in self._backend and (self._keeps_mpi or standing.generation == 0)
        self.role = "new" if is_possible else ""  # see Arrival
        self._places: list[str] = []

    @property
    def has_left(self) -> bool:
        """Whether the backend is mpi, but the ranks of this training are in no MPI job, or not any more."""
        return "mpi" in self._backend and not self.role

    def backend_of(self, arrivals: Sequence[Arrival]) -> str:
        """Returns the backend of a generation of these ranks. All of them decide the same."""
        roles = {one.role for one in arrivals}
        if "mpi" not in self._backend:
            return self._backend
        if "" not in roles and ("in" in roles or self._standing.generation == 0):
            return self._backend
        self.role = ""
        leave_mpi()
        return "gloo"

    def form(self, arrivals: Sequence[Arrival], timeout: float) -> None:
        """Makes the process group over MPI. Raises RuntimeError; this process can't try again then."""
        Background.uses_callers = False
        is_in, self.role = self.role == "in", ""
        if self._standing.generation:
            missing = [one.rank for one in arrivals if one.role == "new"]
            ulfm.wait_in_thread(lambda: self._join(missing, timeout, is_in=is_in), self._is_lost)
        else:
            self._meet(timeout)
        self.role = "in"

    def _join(self, missing: Sequence[int], timeout: float, *, is_in: bool) -> None:
        """Makes one MPI job of those that are `missing` and the others. `is_in`: this process is one of the others."""
        rank, generation = self._standing.rank, self._standing.generation
        prefix = f"{os.path.dirname(os.environ['RANKDECK_HANDOVER'])}/mpi_{generation}_"
        if is_in:
            from rankdeck.c10d._mpi import job

            world = ulfm.regroup(job.world(), rank, missing, prefix)
        else:
            world = ulfm.come_back(rank, missing, prefix, self._is_lost)
            from rankdeck.c10d._mpi import job
        job.begin_generation(world, timeout)
        self._meet(timeout)

    def _meet(self, timeout: float) -> None:
        init_process_group(timeout=timeout)
        if self._keeps_mpi:
            from rankdeck.c10d._mpi import job

            self._places = job.world().allgather(ulfm.place())

    def see_loss(self) -> None:
        """Ends each wait for other ranks. Any thread may call this."""
        if self._keeps_mpi:
            ulfm.kill_places_of_the_dead(self._places)
        if (job := sys.modules.get(_JOB)) is not None:
            job.abandon()

    def end_generation(self) -> None:
        """Ends the groups of a generation. This process leaves MPI if it can't go on there."""
        job = sys.modules.get(_JOB)
        can_go_on = self._keeps_mpi and self.role == "in" and job is not None and job.end_generation()
        if self.role != "new" and not can_go_on:
            self.role = ""
            leave_mpi()


_JOB = "rankdeck.c10d._mpi.job"  # imported by the first process group over MPI, and never without one


def leave_mpi() -> None:
    """Leaves the MPI job for ever, if this process is in one."""
    if (job := sys.modules.get(_JOB)) is not None:
        job.leave()
