"""What scripts import from installed packages, kept beside the runs for `launch.preload = "auto"`."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.core.errors import RankdeckError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile_checks import MAX_PRELOAD, is_module_name
from engine.runs.paths import private_folder, state_folder
from engine.runs.record import open_regular, replace_file


class ScriptImports(msgspec.Struct, frozen=True, kw_only=True):
    """`imports/KEY.json`: of one script with one Python.

    `modules`: that rank 0 of the last run used when its process group was made; `refused`: why some of them can't be preloaded.
    """

    modules: tuple[str, ...] = ()
    refused: dict[str, str] = {}


def recall_imports(plan: LaunchPlan) -> ScriptImports:
    """What is known of the script of a plan; nothing if it has not run yet."""
    path = _file(plan)
    if not path.exists():
        return ScriptImports()
    try:
        private_folder(path.parent)
        with open(open_regular(path), "rb") as file:
            return msgspec.json.decode(file.read(), type=ScriptImports)
    except (OSError, RankdeckError, msgspec.MsgspecError):
        return ScriptImports()


def with_automatic_preload(plan: LaunchPlan) -> LaunchPlan:
    """The plan with the modules that its script used in its last run, if the profile leaves them to rankdeck."""
    if not plan.preload_auto:
        return plan
    known = recall_imports(plan)
    modules = tuple(name for name in known.modules if is_module_name(name) and name not in known.refused)
    return msgspec.structs.replace(plan, preload=modules[:MAX_PRELOAD])


def remember_modules(plan: LaunchPlan, modules: tuple[str, ...]) -> None:
    """Keeps what the script of a plan uses. Raises OSError or RankdeckError: it can't be written."""
    _change(plan, lambda known: msgspec.structs.replace(known, modules=modules))


def remember_refusal(plan: LaunchPlan, module: str, reason: str) -> None:
    """Keeps why a module can't be preloaded, so that the next launch does not try it. Raises as `remember_modules`."""
    _change(plan, lambda known: msgspec.structs.replace(known, refused={**known.refused, module: reason}))


def _change(plan: LaunchPlan, change: Callable[[ScriptImports], ScriptImports]) -> None:
    folder = private_folder(_file(plan).parent)
    with open(folder / ".lock", "wb") as lock:  # several runs of a script may tell at the same moment
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = recall_imports(plan)
        if (after := change(before)) != before:
            replace_file(_file(plan), msgspec.json.encode(after))


def _file(plan: LaunchPlan) -> Path:
    what = msgspec.json.encode([plan.program.kind, plan.program.target, plan.python, plan.reach.setup, plan.workdir])
    return state_folder() / "imports" / f"{hashlib.sha256(what).hexdigest()[:32]}.json"
