"""A site's document: administrators set defaults of profiles, and limits that profiles can't exceed, for all users."""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from engine.core.errors import CheckError
from engine.core.plan.document.places import Places
from engine.core.plan.document.reading import JOBS, below, parsed_toml, profile_from_data, section_from_data
from engine.core.plan.environment import EnvWarning
from engine.core.plan.plan import PlannedNode
from engine.core.plan.profile import Profile, Section, to_toml_data

ASK = "ask the administrators of this machine"

_NOT_FOR_ALL = (("schema",), ("name",), ("description",), ("recipe",), ("layout", "nodes"), ("layout", "hostfile"))
"""Keys and tables that say what a profile is."""

_ENDLESS = (("launch", "hold_for"),)  # numbers of which 0 means: no limit


class Site(Section, frozen=True, kw_only=True):
    """The document. `message`: printed at each launch. `login_nodes`: whether ranks may run on a login node of Slurm. `defaults`, `limits`: keys of
    profiles. A number in `limits` is the most that a profile may have; any other value there replaces that of the profile."""

    message: str = ""
    login_nodes: Literal["warn", "allow", "refuse"] = "warn"
    defaults: dict[str, Any] = msgspec.field(default_factory=dict)
    limits: dict[str, Any] = msgspec.field(default_factory=dict)


def parse_site(text: str, *, file: str) -> tuple[Site, Places]:
    """Reads a site's document, and where its keys are written. Raises ProfileError: the first error, with its line."""
    data, places = parsed_toml(text, file=file)
    site = section_from_data(data, Site, places)
    for name, table in (("defaults", site.defaults), ("limits", site.limits)):
        inner = Places(file, {path[1:]: line for path, line in places.lines.items() if path[0] == name})
        for path, _ in _flat(table):
            if path in JOBS or any(path[: len(one)] == one for one in _NOT_FOR_ALL):
                raise inner.error(path, f"can't be set for all users, in [{name}]")
        base = {"schema": 1, "name": "site", "recipe": {"name": "any"}, "layout": {"slurm": {}, "pbs": {}}}
        merged = below(base, table)
        merged["layout"] = {key: value for key, value in merged["layout"].items() if value != {}}
        profile_from_data(merged, inner)
    return site, places


def limited(profile: Profile, site: Site, places: Places) -> tuple[Profile, tuple[EnvWarning, ...]]:
    """A profile within the limits of a site, and a warning for each value that is another than the profile says. `places`: where the keys of the site are written.
    Raises CheckError: the profile's job is larger than the site allows."""
    data, said = to_toml_data(profile), []
    for path, limit in _flat(site.limits):
        *tables, key = path
        if path[:2] in JOBS and not isinstance(getattr(profile.layout, path[1]), Section):
            continue
        where = places.where(("limits", *path))
        table = functools.reduce(lambda outer, name: outer.setdefault(name, {}), tables, data)
        before = table.get(key)
        if isinstance(limit, int | float) and not isinstance(limit, bool):
            now = functools.reduce(getattr, path, profile)
            most = limit or (math.inf if path in _ENDLESS else 0)
            if not isinstance(now, int | float) or ((now or path not in _ENDLESS) and now <= most):
                continue
            if path[0] == "layout":
                hint = f"see {where}"
                raise CheckError(f"{'.'.join(path)} is {now}, and this site allows at most {limit}", hint=hint)
        if before == limit:
            continue
        if before is not None and before != functools.reduce(
            lambda outer, name: outer.get(name, {}), path, site.defaults
        ):
            problem = f"is {limit!r} for all users of this site, not {before!r}"
            said.append(EnvWarning(place=where, table=".".join(tables), name=key, problem=problem, hint=ASK))
        table[key] = limit
    return profile_from_data(data, places) if site.limits else profile, tuple(said)


def check_ranks_of_nodes(nodes: Iterable[PlannedNode], site: Site, places: Places) -> None:
    """Raises CheckError: a node gets more ranks than the site allows, however its profile names their number."""
    path = ("layout", "ranks_per_node")
    most = site.limits.get("layout", {}).get(path[1])
    for node in nodes:
        if isinstance(most, int) and len(node.ranks) > most:
            hint = f"see {places.where(('limits', *path))}"
            fact = f"{node.name} gets {len(node.ranks)} ranks, and this site allows at most {most}"
            raise CheckError(fact, hint=hint)


def _flat(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values in nested tables, by their paths."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), value
