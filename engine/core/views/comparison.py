"""Two or more runs side by side: results, and what differs between their settings, plans, code, versions and environments."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from engine.core.plan.plan import LaunchPlan
from engine.core.plan.secrets import shown_environment, shown_value
from engine.core.plan.settings import Settings, differing_settings
from engine.core.terminal_text import visible
from engine.core.views.origin import Origin
from engine.core.words import limited

NOTHING = "-"  # shown if a run has no such value
MAX_NAMES = 4  # changed files that are named in one cell
MAX_NEWS = 40  # characters of the longest value in the line about what is new


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `settings`: None if its profile can't be read. `origin` and `patch`: what its newest attempt started from, and its uncommitted changes."""

    run: str
    results: dict[str, str | float | int | None]
    settings: Settings | None
    plan: LaunchPlan
    launched_at: float = 0.0
    origin: Origin | None = None
    patch: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a name, and the value of each run."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the runs do not all have the same value."""
        return len(set(self.values)) > 1


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one subject. `results` has all; the other subjects have only what differs."""

    title: str
    rows: tuple[Row, ...]


def compare(sides: Sequence[Side], *, show_secrets: bool = False) -> tuple[Topic, ...]:
    shown = (lambda _, value: str(value)) if show_secrets else shown_value
    names = dict.fromkeys(name for side in sides for name in side.results)
    results = [Row(name=name, values=tuple(_result(name, side) for side in sides)) for name in names]
    tables = [side.settings or {} for side in sides]
    keys = [] if None in [side.settings for side in sides] else differing_settings(tables)
    settings = [
        Row(name=key, values=tuple(shown(key, one[key]) if key in one else NOTHING for one in tables)) for key in keys
    ]
    parts = [
        Topic(title="results", rows=tuple(results)),
        Topic(title="settings", rows=tuple(settings)),
        Topic(title="plan", rows=_differing(sides, lambda side: _plan_facts(side.plan))),
        Topic(title="code", rows=_code_rows(sides)),
        Topic(title="versions", rows=_differing(sides, lambda side: side.origin.versions if side.origin else None)),
        Topic(title="environment", rows=_differing(sides, lambda one: one.origin.environment if one.origin else None)),
    ]
    return tuple(part for part in parts if part.rows)


def new_since(before: Side, after: Side) -> str:
    """The differences from an earlier run in one line: `new since train-x7k2: --bs 64 (was 32)`; empty: there are none."""
    rows = [row for part in compare((before, after)) if part.title != "results" for row in part.rows]
    told = []
    for row in rows:
        then, now = row.values
        is_short = max(len(then), len(now)) <= MAX_NEWS and "SHA" not in row.name
        was = f" (was {then})" if then != NOTHING else ""
        told.append(row.name.partition(" (")[0] + (f" {now}{was}" if is_short else " (another one)"))
    more = f" and {len(told) - MAX_NAMES} more" if len(told) > MAX_NAMES else ""
    return f"new since {before.run}: {', '.join(told[:MAX_NAMES])}{more}" if told else ""


def _result(name: str, side: Side) -> str:
    value = side.results.get(name)
    if value is None:
        return NOTHING
    return f"{value:.5g}" if isinstance(value, float) and name != "seconds" else str(value)


def _differing(sides: Sequence[Side], table: Callable[[Side], Mapping[str, str] | None]) -> tuple[Row, ...]:
    """Rows of tables that differ; none if one run has no such table, because then everything would."""
    tables = [table(side) for side in sides]
    if any(one is None for one in tables):
        return ()
    keys = differing_settings([one for one in tables if one is not None])
    values = [(key, tuple(one.get(key, NOTHING) for one in tables if one is not None)) for key in keys]
    return tuple(Row(name=key, values=found) for key, found in values)


def _plan_facts(plan: LaunchPlan) -> dict[str, str]:
    """A plan's additions to the settings: nodes, programs and defaults."""
    nodes = ", ".join(f"{node.name}:{len(node.ranks)}" for node in plan.nodes)
    return {
        "nodes": nodes,
        "device": plan.backend.device,
        "python": plan.python,
        "backend found": plan.backend.found,
        "program": plan.program.target,
        **{f"default {name}": value for name, value in shown_environment(plan.env_defaults).items()},
    }


def _code_rows(sides: Sequence[Side]) -> tuple[Row, ...]:
    if any(side.origin is None for side in sides):
        return ()
    origins = [side.origin for side in sides if side.origin is not None]
    codes = [origin.code for origin in origins]
    patches = [files_of(side.patch) for side in sides]
    keys = differing_settings(patches)
    rows = [
        Row(name="commit", values=tuple(code.commit[:12] or code.trouble if code else NOTHING for code in codes)),
        Row(name="branch", values=tuple(code.branch if code else NOTHING for code in codes)),
        Row(
            name="not committed",
            values=tuple(_names([f"{name} {_counts(one[name])}" for name in keys if name in one]) for one in patches),
        ),
        Row(name="new files", values=tuple(_names(code.untracked) if code else NOTHING for code in codes)),
        Row(name="script (SHA-256)", values=tuple(origin.script or NOTHING for origin in origins)),
    ]
    return tuple(row for row in rows if row.differs)


def _counts(patch: str) -> str:
    lines = patch.split("\n")
    added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
    return f"+{added} -{removed}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(visible(limited(name, 60)) for name in names[:MAX_NAMES]) + more or NOTHING


_FILE = re.compile(r"^diff --git a/(.+) b/\1$", re.MULTILINE)


def files_of(patch: str) -> dict[str, str]:
    """The parts of a patch by file; git's lines with hashes of contents are left out."""
    found: dict[str, str] = {}
    starts = list(_FILE.finditer(patch))
    ends = [match.start() for match in starts[1:]] + [len(patch)]
    for match, end in zip(starts, ends, strict=False):  # a patch of no file has an end and no start
        lines = patch[match.end() : end].split("\n")[1:]
        found[match[1]] = "\n".join(line for line in lines if not line.startswith("index "))
    return found


def code_difference(before: Side, after: Side) -> list[str]:
    """The lines of both runs' uncommitted changes that differ, as a unified diff of the two patches. Raw text of files."""
    old, new = files_of(before.patch), files_of(after.patch)
    lines: list[str] = []
    for name in differing_settings([old, new]):
        first, second = (side.get(name, "").split("\n") for side in (old, new))
        lines += difflib.unified_diff(first, second, f"{before.run}: {name}", f"{after.run}: {name}", n=2, lineterm="")
    return lines
