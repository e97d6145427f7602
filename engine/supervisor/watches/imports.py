"""Keeps which modules the script of a run uses, and how long their imports take, for `launch.preload` of the next launch."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from engine.core.errors import RankdeckError
from engine.core.plan.document.checks import is_module_name
from engine.core.run import events as ev
from engine.runs.imports import recall_imports, remember_modules, slow_imports
from engine.supervisor.log import note
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun

TOLD = 0.1  # seconds from which an import is told
NUMBER = re.compile(r"[0-9]{1,6}\.[0-9]{1,6}")


class ImportWatch:
    """Watches what rank 0 reports. `ingest`: the numbers of its ranks."""

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        self._kept: str | None = None

    def look(self, now: float) -> None:
        """Writes a new report down, and tells what took long."""
        told = self._ingest.progress[0].uses
        if told is None or told == self._kept:
            return
        self._kept = told
        plan, seconds = self._run.plan, dict(_read(told))
        try:
            remember_modules(plan, tuple(seconds), {name: took for name, took in seconds.items() if took})
        except (RankdeckError, OSError) as error:
            note(f"can't keep what the script imports: {error}")
        if modules := tuple((name, took) for name, took in seconds.items() if took >= TOLD):
            plan = replace(plan, slow_imports=slow_imports(plan, recall_imports(plan)))
            preload = plan.offered_preload if plan.slow_imports else ()
            attempt = self._run.state.attempt
            self._run.handle(ev.ScriptImported(at=now, attempt=attempt, modules=modules, preload=preload))


def _read(told: str) -> Iterator[tuple[str, float]]:
    """Modules and the seconds of their imports, 0 if the report has none."""
    for word in told.split():
        name, _, number = word.partition("=")
        if is_module_name(name):
            yield name, float(number) if NUMBER.fullmatch(number) else 0.0
