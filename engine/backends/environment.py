"""Warnings about the environment of a plan's ranks: variables that nothing reads, and invalid values.

gloo, NCCL and Open MPI ignore unknown names without a message.
"""

import difflib
from collections.abc import Mapping
from typing import NamedTuple

from engine.backends.variables import ALIASES, FAMILIES, GONE, VARIABLES, Family, Variable, family_of
from engine.core.plan.document.places import Places
from engine.core.plan.environment import INHERITED, EnvWarning, backends_in
from engine.core.plan.mpirun import NAMES, Mpi
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile

MIN_LIKENESS = 0.5  # similarity for suggesting a name instead of one that does not exist
MAX_VALUE = 40  # characters of a value in a message

_NAMES = frozenset().union(*(family.names for family in FAMILIES))


class Trouble(NamedTuple):
    """The problem with a variable, as the end of a sentence that begins with its name, and the next step."""

    problem: str
    hint: str


def environment_warnings(
    profile: Profile, plan: LaunchPlan, inherited: Mapping[str, str], places: Places | None = None
) -> tuple[EnvWarning, ...]:
    """The warnings about a plan's environment. `profile`: the user's profile. `inherited`: the user's own environment, which ranks on this
    machine inherit. `places`: Places of the keys of the profile; None: unknown."""
    found: list[EnvWarning] = []
    for path, env in ((("backend", "env"), profile.backend.env), (("env",), profile.env)):
        for name, value in env.items():
            if (trouble := trouble_with(name, value, plan)) is not None:
                place = places.where((*path, name)) if places is not None else ""
                found.append(EnvWarning(place=place, table=".".join(path), name=name, **trouble._asdict()))
    if any(node.transport == "local" for node in plan.nodes):
        for name, value in inherited.items():
            trouble = None if name in plan.env else _trouble_with_inherited(name, value, plan)
            if trouble is not None and name.isascii():  # a plan is JSON, which can't contain undecodable bytes
                found.append(EnvWarning(place=INHERITED, table="", name=name, **trouble._asdict()))
    return tuple(found)


def trouble_with(name: str, value: str, plan: LaunchPlan) -> Trouble | None:
    """The problem with a variable of a profile; None: no problem is known."""
    family = family_of(name)
    if family is None:
        return None
    if name in GONE:
        gone = GONE[name][1]
        return Trouble(f"does nothing: {gone.why}", gone.hint)
    known = VARIABLES[name][1] if name in VARIABLES else None
    if known is not None and known.fixed:
        return Trouble("does nothing: rankdeck sets it for every rank", "leave it out")
    return (
        _no_effect(family, plan)
        or (_old_name(*ALIASES[name]) if name in ALIASES else None)
        or _other_version(known, plan.backend.mpi)
        or _misunderstood(known, family, value)
        or _unknown(name, family)
    )


def _trouble_with_inherited(name: str, value: str, plan: LaunchPlan) -> Trouble | None:
    """Modules and shells set variables for many programs, so only those of this backend are checked."""
    family = family_of(name)
    if family is None or _no_effect(family, plan) is not None:
        return None
    if name in GONE:
        return trouble_with(name, value, plan)
    known = VARIABLES[name][1] if name in VARIABLES else None
    return _misunderstood(known, family, value) or _unknown(name, family)


def _no_effect(family: Family, plan: LaunchPlan) -> Trouble | None:
    """A variable of another backend or another MPI. The user's own script may still create a group that reads it."""
    mpi, title = plan.backend.mpi, plan.backend.name
    backends = {backend for one in (plan.backend, *plan.fallback) for backend in backends_in(one.name)}
    if backends & family.backends:
        if mpi is None or family.name == mpi.implementation or family.name not in NAMES:
            return None
        title = NAMES[mpi.implementation]
    elif family.backends == {"nccl"} and plan.program.kind != "recipe":
        return Trouble(f"has no effect with {title}", "leave it out, unless the script itself creates an nccl group")
    return Trouble(f"has no effect with {title}", f"leave it out: only {family.reader} reads it")


def _old_name(family: Family, new: Variable) -> Trouble:
    hint = f"write {new.name}" + (f", with torch {new.since} and newer" if new.since else "")
    return Trouble(f"is an old name that {family.reader} still reads", hint)


def _other_version(known: Variable | None, mpi: Mpi | None) -> Trouble | None:
    """A variable of Open MPI 4 with Open MPI 5, or vice versa."""
    if known is None or mpi is None or VARIABLES[known.name][0].name != "openmpi":
        return None
    theirs = known.until if mpi.has_prrte else known.since
    if not theirs:
        return None
    hint = f"write {known.instead}" if known.instead else "leave it out"
    return Trouble(f"is a name of Open MPI {theirs}, and {mpi.path} is of {mpi.version}", hint)


def _misunderstood(known: Variable | None, family: Family, value: str) -> Trouble | None:
    takes = known.values if known is not None else None
    if takes is None or not value or takes.allows(value):
        return None
    said = value if len(value) <= MAX_VALUE else f"{value[:MAX_VALUE]}…"
    return Trouble(f"is {said!r}, which {family.reader} does not understand", f"it takes {takes.words}")


def _unknown(name: str, family: Family) -> Trouble | None:
    """A name that nothing reads: if all names of the family are known, or if the name is very similar to a known one."""
    prefix = max((prefix for prefix in family.prefixes if name.startswith(prefix)), key=len, default="")
    if not prefix or name in _NAMES:
        return None
    rests = [known.removeprefix(prefix) for known in _NAMES if known.startswith(prefix)]
    near = difflib.get_close_matches(
        name.removeprefix(prefix), rests, 1, MIN_LIKENESS if family.is_complete else family.likeness
    )
    if not near and not family.is_complete:
        return None
    backend = min(family.backends)
    hint = f"did you mean {prefix}{near[0]}?" if near else f"rankdeck env {backend} lists the known variables"
    return Trouble(f"does nothing: {family.reader} has no such variable", hint)
