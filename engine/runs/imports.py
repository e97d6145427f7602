"""Modules that scripts import from installed packages, kept beside the runs for `launch.preload = "auto"`."""

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.core.errors import RankdeckError
from engine.core.plan.document.checks import MAX_PRELOAD, is_module_name
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import AUTO_PRELOAD
from engine.linux.files import replace_file
from engine.runs.paths import private_folder, state_folder
from engine.runs.record import read_value

WORTH = 0.5  # seconds of an import in each rank from which it is worth sharing
MOST_KEPT = 256  # scripts that are remembered: those that ran last


class ScriptImports(msgspec.Struct, frozen=True, kw_only=True):
    """`imports/KEY.json`: the imports of one script with one Python.

    `modules`: those that rank 0 of the last run used when its process group was made; `seconds`: import times of some of them in a
    rank; `refused`: why some of them can't be preloaded.
    """

    modules: tuple[str, ...] = ()
    seconds: dict[str, float] = {}
    refused: dict[str, str] = {}


def recall_imports(plan: LaunchPlan) -> ScriptImports:
    """The known imports of a plan's script; none if it has not run yet."""
    path = _file(plan)
    if not path.exists():
        return ScriptImports()
    try:
        private_folder(path.parent)
        return read_value(path, ScriptImports)
    except (OSError, RankdeckError):
        return ScriptImports()


def with_known_imports(plan: LaunchPlan) -> LaunchPlan:
    """The plan with the modules that its script used in its last run, if the profile leaves them to rankdeck; else with those that a
    user might add.
    """
    known = recall_imports(plan)
    if plan.launch.preload != AUTO_PRELOAD:
        return msgspec.structs.replace(plan, slow_imports=slow_imports(plan, known))
    modules = tuple(name for name in known.modules if is_module_name(name) and name not in known.refused)
    return msgspec.structs.replace(plan, preload=modules[:MAX_PRELOAD])


def slow_imports(plan: LaunchPlan, known: ScriptImports) -> tuple[tuple[str, float], ...]:
    """Modules worth adding to `launch.preload`, and the seconds of their imports in a rank; none if the profile says `auto`."""
    if plan.launch.preload == AUTO_PRELOAD or not plan.launch.warm or plan.rank.wrap:
        return ()
    free = MAX_PRELOAD - len(plan.preload)
    found = [
        (name, known.seconds[name])
        for name in known.modules
        if known.seconds.get(name, 0.0) >= WORTH and name not in known.refused and name not in plan.preload
    ]
    return tuple(found[:free])


def remember_modules(plan: LaunchPlan, modules: tuple[str, ...], seconds: dict[str, float]) -> None:
    """Keeps the modules that the script of a plan uses. `seconds`: import times in rank 0, where it made the import itself. Raises OSError or RankdeckError:
    it can't be written."""

    def change(known: ScriptImports) -> ScriptImports:
        merged = {name: took for name, took in {**known.seconds, **seconds}.items() if name in modules}
        return msgspec.structs.replace(known, modules=modules, seconds=merged)

    _change(plan, change)


def remember_refusal(plan: LaunchPlan, module: str, reason: str) -> None:
    """Keeps why a module can't be preloaded, so that the next launch does not try it. Raises as `remember_modules`."""
    _change(plan, lambda known: msgspec.structs.replace(known, refused={**known.refused, module: reason}))


def _change(plan: LaunchPlan, change: Callable[[ScriptImports], ScriptImports]) -> None:
    folder = private_folder(_file(plan).parent)
    with open(folder / ".lock", "wb") as lock:  # several runs of a script may tell at the same moment
        fcntl.flock(lock, fcntl.LOCK_EX)
        replace_file(_file(plan), msgspec.json.encode(change(recall_imports(plan))))
        # Removes files of scripts that have not run for longest, and files that killed writers have left.
        kept = [entry for entry in os.scandir(folder) if entry.is_file() and entry.name != ".lock"]
        for entry in sorted(kept, key=lambda one: one.stat().st_mtime)[:-MOST_KEPT]:
            os.unlink(entry.path)


def _file(plan: LaunchPlan) -> Path:
    what = msgspec.json.encode([plan.program.kind, plan.program.target, plan.python, plan.reach.setup, plan.workdir])
    return state_folder() / "imports" / f"{hashlib.sha256(what).hexdigest()[:32]}.json"
