"""The queue of a user on a host: the order of runs that wait, and which of them may start. Pure.

An entry is queued or held; a starter claims it (`starting`) with the id of its run, and removes it once the run has begun. A starter that dies
leaves the claim, and the next one starts the same run: see `engine.client.sweeps.starter`.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from engine.core.plan.plan import LaunchPlan, Swept
from engine.core.words import count

ALL = "all"  # GPUs of a run for which no variable chooses some: one for each of its ranks
VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_TRIES = 5  # starts of one entry that may be killed before it counts as failed


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of a run that no other run gets: a core of this machine for each of `ranks`, `gpus` of this machine, and other nodes."""

    ranks: int = 0
    gpus: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class Active(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has not ended. `sweep`: the sweep that it belongs to; may be empty."""

    run: str
    needs: Needs
    sweep: str = ""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits. `place`: key in `Queue.places`. `parallel`: most runs of its sweep at once; 0: no limit. `after`: a run that ends before;
    empty: none. `run`: the id of its own run; empty: nobody has claimed it. `reason`: why it has failed to start."""

    number: int
    name: str
    profile: str  # as TOML
    place: str
    needs: Needs
    state: Literal["queued", "held", "starting", "failed"] = "queued"
    after: str = ""
    swept: Swept | None = None
    parallel: int = 0
    cold: bool = False
    run: str = ""
    gpus: tuple[str, ...] = ()
    tries: int = 0
    reason: str = ""

    @property
    def sweep(self) -> str:
        return self.swept.sweep if self.swept is not None else ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is launched: a folder, and variables as `NAME=value`. Bytes, because neither need be UTF-8."""

    folder: bytes
    environment: tuple[bytes, ...]

    @property
    def visible(self) -> str | None:
        """The GPUs that programs there may use, as the variable has them; None: all."""
        start = f"{VISIBLE}=".encode()
        return next(
            (one[len(start) :].decode(errors="replace") for one in self.environment if one.startswith(start)), None
        )


class Gpu(NamedTuple):
    """A GPU of this machine. `number`: in the order of the bus. `is_used`: a process uses it, a run of this queue or another one."""

    number: str
    uuid: str
    is_used: bool


class Wait(NamedTuple):
    """Why an entry waits. `reason`: empty: it may start. `gpus`: those that it gets. `is_watched`: it waits for GPUs of other processes,
    whose end starts nothing."""

    reason: str = ""
    gpus: tuple[str, ...] = ()
    is_watched: bool = False


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """All entries in their order. `last`: the highest number that was given. `places`: by a digest of their content."""

    last: int = 0
    entries: tuple[Entry, ...] = ()
    places: dict[str, Place] = {}

    def find(self, number: int) -> Entry | None:
        """The entry of a number; None: there is none any more."""
        return next((one for one in self.entries if one.number == number), None)

    def added(self, entries: Sequence[Entry], place: Place) -> "Queue":
        """With new entries behind all others. They get numbers."""
        own = tuple(replace(one, number=self.last + at) for at, one in enumerate(entries, 1))
        places = {**self.places, **{one.place: place for one in own}}
        return Queue(last=self.last + len(own), entries=(*self.entries, *own), places=places)

    def changed(self, entry: Entry) -> "Queue":
        """With another state of an entry."""
        return replace(self, entries=tuple(entry if one.number == entry.number else one for one in self.entries))

    def without(self, *numbers: int) -> "Queue":
        """Without some entries, and without places that no other one has."""
        entries = tuple(one for one in self.entries if one.number not in numbers)
        used = {one.place for one in entries}
        return replace(self, entries=entries, places={key: one for key, one in self.places.items() if key in used})

    def moved(self, number: int, position: int) -> "Queue":
        """With an entry at another position, from 1."""
        entries = [one for one in self.entries if one.number != number]
        entries[position - 1 : position - 1] = [one for one in self.entries if one.number == number]
        return replace(self, entries=tuple(entries))


def needs_of(plan: LaunchPlan, *, is_here: bool = True) -> Needs:
    """The resources of a run. `is_here`: its local ranks are on this machine."""
    ranks = sum(len(node.ranks) for node in plan.nodes if node.transport == "local" and is_here)
    chosen = {**plan.env_defaults, **plan.env}.get(VISIBLE)
    gpus = (ALL,) if chosen is None else _names(chosen)
    nodes = tuple(node.name for node in plan.nodes if node.transport != "local")
    return Needs(ranks=ranks, gpus=gpus if ranks and plan.backend.device == "cuda" else (), nodes=nodes)


def _names(visible: str) -> tuple[str, ...]:
    return tuple(filter(None, (one.strip() for one in visible.split(","))))


def waits(queue: Queue, active: Sequence[Active], cores: int, gpus: Sequence[Gpu] = ()) -> dict[int, Wait]:
    """Why each queued entry waits, by its number. The first one that may start is the next.

    An entry that waits for cores, GPUs or nodes keeps them from those behind it, so that a large run is not overtaken for ever; one that
    waits for another run or for its sweep does not.

    `active`: runs that have begun and not ended. `gpus`: of this machine; empty: the driver tells none, and two runs on GPUs exclude each other."""
    claimed = [
        Active(run=one.run, needs=replace(one.needs, gpus=one.gpus or one.needs.gpus), sweep=one.sweep)
        for one in queue.entries
        if one.state == "starting"
    ]
    used = [*(one for one in active if one.run not in {own.run for own in claimed}), *claimed]
    found, earlier = dict[int, Wait](), list[Needs]()
    for entry in queue.entries:
        if entry.state != "queued":
            continue
        beside = sum(one.sweep == entry.sweep for one in used) if entry.parallel else 0
        if entry.after and any(entry.after == one.run for one in used):
            found[entry.number] = Wait(f"{entry.after} has not ended")
        elif entry.parallel and beside >= entry.parallel:
            found[entry.number] = Wait(f"{count(beside, 'run')} of {entry.sweep} at once")
        else:
            place = queue.places.get(entry.place)
            look = _Look(entry.needs, place.visible if place is not None else None, cores, gpus)
            wait = look.wait([one.needs for one in used])
            if not wait.reason and look.wait([*(one.needs for one in used), *earlier]).reason:
                wait = Wait("an earlier entry comes first")
            if wait.reason:
                pool = tuple(look.pool()) if ALL in entry.needs.gpus else ()
                earlier.append(replace(entry.needs, gpus=pool or entry.needs.gpus))
            else:
                needs = replace(entry.needs, gpus=wait.gpus or entry.needs.gpus)
                used.append(Active(run="", needs=needs, sweep=entry.sweep))
            found[entry.number] = wait
    return found


class _Look(NamedTuple):
    """A run that may start. `visible`: see `Place`."""

    needs: Needs
    visible: str | None
    cores: int
    gpus: Sequence[Gpu]

    def wait(self, taken: Sequence[Needs]) -> Wait:
        """Why other runs, or processes, leave too little for it. More ranks than cores or GPUs start once they are alone."""
        ranks = sum(one.ranks for one in taken)
        if ranks and self.needs.ranks and ranks + self.needs.ranks > self.cores:
            return Wait(f"{ranks} of {count(self.cores, 'core')} taken")
        for one in taken:
            if both := sorted({*self.needs.nodes} & {*one.nodes}):
                return Wait(f"{both[0]} is taken")
        return self._gpu_wait([one for one in taken if one.gpus]) if self.needs.gpus else Wait()

    def _gpu_wait(self, taken: Sequence[Needs]) -> Wait:
        names = [self._numbers(one) for one in (self.needs, *taken)]
        wanted, others = names[0], {name for own in names[1:] for name in own}
        if not self.gpus:
            return Wait("GPUs are taken" if others and (ALL in (*wanted, *others) or {*wanted} & others) else "")
        used = {one.number for one in self.gpus if one.is_used}
        if ALL not in self.needs.gpus or self.needs.nodes:  # a choice for this machine would reach the others
            if {*wanted} & others:
                return Wait("GPUs are taken")
            return Wait("another process uses its GPUs", is_watched=True) if {*wanted} & used else Wait()
        pool = self.pool()
        if self.visible and not pool:  # parts of GPUs, which the driver does not list
            parts = _names(self.visible)
            return Wait("GPUs are taken") if {*parts} & others else Wait(gpus=parts)
        free = [one for one in pool if one not in others | used]
        if len(free) < (least := min(self.needs.ranks, len(pool))):
            return Wait(f"{len(free)} of {count(least, 'GPU')} free", is_watched=bool({*pool} & used - others))
        return Wait(gpus=tuple(free[:least]))

    def pool(self) -> list[str]:
        """The GPUs from which it may get some, by number."""
        every = [one.number for one in self.gpus]
        if self.visible is None:
            return every
        return [one for one in self._numbers(replace(self.needs, gpus=_names(self.visible))) if one in every]

    def _numbers(self, needs: Needs) -> tuple[str, ...]:
        """The GPUs of a run by number, if the driver tells them. A run without a choice has the first ones."""
        if ALL in needs.gpus and self.gpus:
            return tuple(one.number for one in self.gpus[: needs.ranks])
        return tuple(next((one.number for one in self.gpus if one.uuid.startswith(name)), name) for name in needs.gpus)
