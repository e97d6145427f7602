"""The queue of a user on a host: the order of runs that wait, and which of them may start. Pure.

An entry is queued or held; a starter claims it (`starting`) with the id of its run, and removes it once the run has begun. A starter that dies
leaves the claim, and the next one starts the same run: see `engine.client.sweeps.starter`.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from engine.core.plan.plan import LaunchPlan, Swept
from engine.core.words import count

ALL = "all"  # GPUs of a run for which no variable chooses some
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
    tries: int = 0
    reason: str = ""

    @property
    def sweep(self) -> str:
        return self.swept.sweep if self.swept is not None else ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is launched: a folder, and variables as `NAME=value`. Bytes, because neither need be UTF-8."""

    folder: bytes
    environment: tuple[bytes, ...]


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
    chosen = plan.env.get("CUDA_VISIBLE_DEVICES")
    gpus = (ALL,) if chosen is None else tuple(filter(None, (one.strip() for one in chosen.split(","))))
    nodes = tuple(node.name for node in plan.nodes if node.transport != "local")
    return Needs(ranks=ranks, gpus=gpus if ranks and plan.backend.device == "cuda" else (), nodes=nodes)


def waits(queue: Queue, active: Sequence[Active], cores: int) -> dict[int, str]:
    """Why each queued entry waits, by its number; empty: it may start now. The first one that may start is the next.

    An entry that waits for cores, GPUs or nodes keeps them from those behind it, so that a large run is not overtaken for ever; one that
    waits for another run or for its sweep does not.

    `active`: runs that have begun and not ended."""
    claimed = [
        Active(run=one.run, needs=one.needs, sweep=one.sweep) for one in queue.entries if one.state == "starting"
    ]
    used = [*(one for one in active if one.run not in {own.run for own in claimed}), *claimed]
    found, earlier = dict[int, str](), list[Needs]()
    for entry in queue.entries:
        if entry.state != "queued":
            continue
        beside = sum(one.sweep == entry.sweep for one in used) if entry.parallel else 0
        if entry.after and any(entry.after == one.run for one in used):
            found[entry.number] = f"{entry.after} has not ended"
        elif entry.parallel and beside >= entry.parallel:
            found[entry.number] = f"{count(beside, 'run')} of {entry.sweep} at once"
        else:
            taken = [one.needs for one in used]
            reason = _shortage(entry.needs, taken, cores)
            if not reason and _shortage(entry.needs, [*taken, *earlier], cores):
                reason = "an earlier entry comes first"
            if reason:
                earlier.append(entry.needs)
            else:
                used.append(Active(run="", needs=entry.needs, sweep=entry.sweep))
            found[entry.number] = reason
    return found


def _shortage(needs: Needs, taken: Sequence[Needs], cores: int) -> str:
    """Why other runs leave too little for a run; empty: they do not. More ranks than cores start once they are alone."""
    ranks = sum(one.ranks for one in taken)
    if ranks and needs.ranks and ranks + needs.ranks > cores:
        return f"{ranks} of {count(cores, 'core')} taken"
    for one in taken:
        if needs.gpus and one.gpus and (ALL in (*needs.gpus, *one.gpus) or {*needs.gpus} & {*one.gpus}):
            return "GPUs are taken"
        if both := sorted({*needs.nodes} & {*one.nodes}):
            return f"{both[0]} is taken"
    return ""
