"""`rankdeck bench`: the recipe allreduce over one backend after the other, each a run like any other, and what they come to.

Results are what rank 0 reported by `rankdeck.log`, in the run's folder: they are there as long as the run, for later comparisons.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from engine.backends import BACKENDS
from engine.client.engine import LocalEngine, LocalRun, all_runs, find_run
from engine.commands.follow import pictures
from engine.commands.show import end_words, narrate
from engine.core.errors import CheckError, ProfileError, RankdeckError, SupervisorError, UsageError
from engine.core.metrics.bench import RECIPE, Column, Result, comparison, rate_words, size_words, time_words
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile, profile_from_data, to_toml_data
from engine.core.terminal_text import terminal_line
from engine.planning.recipes import recipes
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan, read_results, read_summary

POLL = 0.2
"""Seconds between two looks for new results."""

EARLIER = 200
"""Newest runs among which an earlier one of the same layout is looked for."""

NO_LIMIT = 1 << 20
"""Cells of a line where the output is no terminal."""


class Outcome(msgspec.Struct, kw_only=True):
    """What came of one backend. `run` is empty where none was launched; `problem` and `hint` then say why."""

    backend: str
    run: str = ""
    state: str = ""
    problem: str = ""
    hint: str = ""
    results: list[Result] = []


# --- what is launched --------------------------------------------------------------------------------------------------------


def make_profiles(
    backends: str | None, base: Profile | None, nodes: str | None, ranks: int | None, options: dict[str, str | None]
) -> list[Profile]:
    """A profile for each backend.

    Args:
        backends: their names, comma-separated; None: all that there are.
        base: layout, launch policy and environment are its; None: two ranks on this machine.
        nodes: where ranks go instead.
        ranks: on each node.
        options: arguments of the recipe; None: as the recipe has it.

    Raises:
        UsageError: there is no such backend, node set or value.
    """
    args = [
        word for name, value in options.items() if value is not None for word in (f"--{name}", _checked(name, value))
    ]
    names = list(BACKENDS) if backends is None else [name.strip() for name in backends.split(",") if name.strip()]
    if unknown := [name for name in names if name not in BACKENDS]:
        raise UsageError(f"there is no backend {unknown[0]!r}", hint=f"there is: {', '.join(BACKENDS)}")
    if not names:
        raise UsageError("--backends names none", hint=f"there is: {', '.join(BACKENDS)}")
    return [_profile(name, base, nodes, ranks, args) for name in dict.fromkeys(names)]


def _profile(backend: str, base: Profile | None, nodes: str | None, ranks: int | None, args: list[str]) -> Profile:
    data: dict[str, Any] = {"schema": 1} if base is None else to_toml_data(base)
    layout: dict[str, Any] = data.get("layout", {}) if nodes is None else {"nodes": nodes}
    if base is None and nodes is None:
        layout = {"ranks_per_node": 2}
    if ranks is not None:
        layout["ranks_per_node"] = ranks
    own = data.get("backend", {}) if base is not None and base.backend.name == backend else {}
    data |= {
        "name": f"bench-{backend}",
        "description": f"collectives over {backend}, measured by rankdeck bench",
        "backend": {**own, "name": backend, "fallback": []},
        "layout": layout,
        "recipe": {"name": RECIPE, "args": args},
        "launch": {**data.get("launch", {}), "on_failure": "stop"},
    }
    try:
        return profile_from_data(data, "bench")
    except ProfileError as error:
        raise UsageError(f"{error.key}: {error.reason}", hint=error.hint) from None


def _checked(name: str, value: str) -> str:
    """A value that the recipe will take.

    Raises:
        UsageError: it would not.
    """
    argument = next(argument for argument in recipes()[RECIPE].arguments if argument.name == name)
    if argument.pattern and not re.fullmatch(argument.pattern, value):
        raise UsageError(f"--{name}: {value!r} is not understood", hint=f"it takes: {argument.help}")
    return value


# --- results of runs ---------------------------------------------------------------------------------------------------------


def results_of(paths: RunPaths) -> list[Result]:
    """The results of a run's newest attempt; none where it reported none."""
    summary = read_summary(paths)
    return read_results(paths, summary.attempt if summary else 0)


def earlier_run(paths: RunPaths) -> RunPaths | None:
    """The newest run before this one that measured the same backend on the same layout; None where there is none."""
    plan, runs = read_plan(paths), all_runs()
    later = next((index for index, run in enumerate(runs) if run.run == paths.run), len(runs))
    return next(
        (
            run
            for run in runs[later + 1 : later + 1 + EARLIER]
            if _is_alike(run, plan, _backend_of(paths)) and results_of(run)
        ),
        None,
    )


def _is_alike(paths: RunPaths, plan: LaunchPlan, backend: str) -> bool:
    try:
        other = read_plan(paths)
    except SupervisorError:
        return False
    same_places = [(place.node, place.rank) for place in other.places] == [(p.node, p.rank) for p in plan.places]
    return same_places and other.program.target == plan.program.target and _backend_of(paths) == backend


def _backend_of(paths: RunPaths) -> str:
    """The backend that a run had at last: another may have taken over."""
    summary = read_summary(paths)
    return summary.backend if summary is not None else read_plan(paths).backend.name


# --- measuring ---------------------------------------------------------------------------------------------------------------


class _Interrupts:
    """Ctrl-C and SIGTERM: the run that goes on is stopped, at once the second time, and no other is launched."""

    def __init__(self) -> None:
        self.count = 0
        self.run: LocalRun | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def _interrupt(self) -> None:
        self.count += 1
        if self.run is not None:
            self.stop(self.run)

    def stop(self, run: LocalRun) -> None:
        """Asks a run to end."""
        task = asyncio.get_running_loop().create_task(self._request(run, at_once=self.count > 1))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    @staticmethod
    async def _request(run: LocalRun, *, at_once: bool) -> None:
        try:
            narrate(await run.stop(at_once=at_once))
        except RankdeckError as error:
            narrate(str(error))


async def bench(profiles: Sequence[Profile]) -> tuple[list[Outcome], bool]:
    """Launches one run after the other, and tells on standard error what is found.

    Returns:
        What came of each, and whether somebody interrupted it.
    """
    interrupts, engine = _Interrupts(), LocalEngine()
    outcomes: list[Outcome] = []
    for profile in profiles:
        if interrupts.count:
            break
        outcome = await _measure(engine, profile, interrupts)
        if outcome.problem:
            narrate(f"{outcome.backend}: {outcome.problem}" + (f"; {outcome.hint}" if outcome.hint else ""))
        outcomes.append(outcome)
    return outcomes, bool(interrupts.count)


async def _measure(engine: LocalEngine, profile: Profile, interrupts: _Interrupts) -> Outcome:
    outcome = Outcome(backend=profile.backend.name)
    try:
        plan = await asyncio.to_thread(engine.preview, profile)
        outcome.run = await engine.launch(profile)
    except RankdeckError as error:  # what can't run, or could not be started: the others go on
        outcome.problem, outcome.hint = error.message, error.hint or ""
        return outcome
    run = LocalRun(find_run(outcome.run))
    narrate(
        f"{outcome.backend}: {outcome.run}, {plan.world_size} ranks on {', '.join(node.name for node in plan.nodes[:4])}"
    )
    interrupts.run = run
    if interrupts.count:  # it came while the run was launched
        interrupts.stop(run)
    try:
        await _follow(run, outcome)
    except RankdeckError as error:  # its supervisor is gone for good: what was measured is still there
        outcome.problem, outcome.hint = error.message, error.hint or ""
    interrupts.run = None
    return outcome


async def _follow(run: LocalRun, outcome: Outcome) -> None:
    """Tells results as they come, until the run has ended."""

    def look() -> None:
        found = results_of(run.paths)
        for result in found[len(outcome.results) :]:
            click.echo(f"  {_told(result)}", err=True)
        outcome.results = found

    async def look_for_ever() -> None:
        while True:
            look()
            await asyncio.sleep(POLL)

    looking = asyncio.create_task(look_for_ever())
    try:
        async with contextlib.aclosing(pictures(run)) as stream:
            async for picture, events in stream:
                last = picture.snapshot
                for event in events:
                    if event.level != "info":
                        narrate(event.text)
    finally:
        looking.cancel()
    look()
    outcome.state = last.run.state
    if outcome.state == "failed":
        failure = last.run.failure
        outcome.problem = f"{failure.headline}: {failure.detail}" if failure else end_words(last)
        outcome.hint = f"rankdeck logs {run.run}"


def _told(result: Result) -> str:
    words = f"{result.collective:15}{size_words(result.bytes):>9}{time_words(result.median_us):>10}"
    rate = f"{rate_words(result.busbw):>9} GB/s" if result.busbw is not None else ""
    return f"{words}   p95{time_words(result.p95_us):>9}{rate}"


# --- what is shown -----------------------------------------------------------------------------------------------------------


def show_outcomes(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    """The comparing table, or all of it as JSON."""
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(outcomes), indent=2).decode())
        return
    measured = [outcome for outcome in outcomes if outcome.results]
    _show([Column(outcome.backend, outcome.results) for outcome in measured])
    for outcome in measured:
        if earlier := earlier_run(find_run(outcome.run)):
            narrate(f"{outcome.backend} was measured before: rankdeck bench --compare {earlier.run} {outcome.run}")


def compare(runs: Sequence[RunPaths], *, as_json: bool) -> None:
    """Runs that were measured beside each other; of one alone, the newest earlier one like it comes first.

    Raises:
        UsageError: a run has no results, or there is nothing to compare with.
    """
    if refused := [run.run for run in runs if not results_of(run)]:
        hint = f"the recipe {RECIPE} and rankdeck bench make runs that have"
        raise UsageError(f"{refused[0]} has no results", hint=hint)
    if len(runs) == 1:
        earlier = earlier_run(runs[0])
        if earlier is None:
            raise UsageError(
                f"nothing was measured before {runs[0].run} with its backend and layout", hint="name two runs or more"
            )
        runs = [earlier, *runs]
    found = [Outcome(backend=_backend_of(run), run=run.run, results=results_of(run)) for run in runs]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _show([Column(f"{outcome.run}: {outcome.backend}", outcome.results) for outcome in found])


def _show(columns: Sequence[Column]) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else NO_LIMIT
    if columns:
        for line in comparison(columns, width):
            click.echo(terminal_line(line, colour=False))


def exit_status(outcomes: Sequence[Outcome], *, interrupted: bool) -> int:
    """0 where what could be measured was; 3 where nothing could be launched; 1 where a run failed; 130 after Ctrl-C."""
    if interrupted:
        return 128 + signal.SIGINT
    launched = [outcome for outcome in outcomes if outcome.run]
    if not launched:
        return CheckError.exit_status
    return 0 if all(outcome.state == "succeeded" for outcome in launched) else RankdeckError.exit_status
