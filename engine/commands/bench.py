"""`rankdeck bench`: runs the recipe allreduce on one backend after the other, and compares the results.

Each measurement is an ordinary run. Results are what its rank 0 reports with `rankdeck.log`; they are kept with the run, so that
later runs can be compared with it.
"""

import asyncio
import contextlib
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from engine.backends import BACKENDS
from engine.client.engine import LocalEngine
from engine.client.run import LocalRun
from engine.commands.follow import snapshots
from engine.commands.interrupts import BenchInterrupts
from engine.commands.output import narrate, print_json, print_line
from engine.commands.show import end_words
from engine.core.errors import CheckError, ProfileError, RankdeckError, SupervisorError, UsageError
from engine.core.metrics.bench import RECIPE, Column, Result, comparison, moved_words, rate_words, time_words
from engine.core.plan.document.reading import below, profile_from_data
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile, to_toml_data
from engine.gate import LAUNCHED
from engine.planning.recipes import recipes
from engine.planning.site import read_site
from engine.runs.listing import all_runs, find_run
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan, read_results, read_summary

POLL = 0.2  # seconds between two reads of new results
EARLIER = 200  # how many of the newest runs are searched for an earlier one with the same layout
NO_LIMIT = 1 << 20  # width of a line, in cells, when the output is not a terminal


class Outcome(msgspec.Struct, kw_only=True):
    """The result of one backend. `run` is empty if none was launched; `problem` and `hint` say why."""

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
    """A profile for each backend. `backends`: their names, comma-separated; None: all. `base`: gives layout, launch policy and environment;
    None: two ranks on this machine. `nodes`: replaces the nodes of `base`. `ranks`: number of ranks on each node. `options`: arguments of
    the recipe; None: the recipe's default. Raises UsageError: an unknown backend, node set or value."""
    given = {name: value for name, value in options.items() if value is not None}
    for argument in recipes()[RECIPE].arguments:
        if argument.name in given and (problem := argument.problem(given[argument.name])):
            raise UsageError(f"--{argument.name}: {problem}", hint="rankdeck bench --help says more")
    args = [word for name, value in given.items() for word in (f"--{name}", value)]
    names = list(BACKENDS) if backends is None else [name.strip() for name in backends.split(",") if name.strip()]
    if unknown := [name for name in names if name not in BACKENDS]:
        raise UsageError(f"unknown backend {unknown[0]!r}", hint=f"choose from: {', '.join(BACKENDS)}")
    if not names:
        raise UsageError("--backends names no backend", hint=f"choose from: {', '.join(BACKENDS)}")
    return [_profile(name, base, nodes, ranks, args) for name in dict.fromkeys(names)]


def _profile(backend: str, base: Profile | None, nodes: str | None, ranks: int | None, args: list[str]) -> Profile:
    data = below({"schema": 1}, read_site().site.defaults) if base is None else to_toml_data(base)
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


# --- results of runs ---------------------------------------------------------------------------------------------------------


def results_of(paths: RunPaths) -> list[Result]:
    """The results of a run's newest attempt; empty if it reported none."""
    summary = read_summary(paths)
    return read_results(paths, summary.attempt if summary else 0)


def earlier_run(paths: RunPaths) -> RunPaths | None:
    """The newest earlier run that measured the same backend on the same layout, or None."""
    plan, runs = read_plan(paths), all_runs()
    later = 1 + next((index for index, run in enumerate(runs) if run.run == paths.run), len(runs))
    alike = (run for run in runs[later : later + EARLIER] if _is_alike(run, plan, _backend_of(paths)))
    return next((run for run in alike if results_of(run)), None)


def _is_alike(paths: RunPaths, plan: LaunchPlan, backend: str) -> bool:
    try:
        other = read_plan(paths)
    except SupervisorError:
        return False
    same_places = [(place.node, place.rank) for place in other.places] == [(p.node, p.rank) for p in plan.places]
    return same_places and other.program.target == plan.program.target and _backend_of(paths) == backend


def _backend_of(paths: RunPaths) -> str:
    """The backend that a run ended on: a fallback may have replaced the first one."""
    summary = read_summary(paths)
    return summary.backend if summary is not None else read_plan(paths).backend.name


# --- measuring ---------------------------------------------------------------------------------------------------------------


async def bench(profiles: Sequence[Profile]) -> tuple[list[Outcome], bool]:
    """Launches one run after the other, and prints results on standard error as they arrive. Returns the outcome of each backend, and
    whether the user interrupted it."""
    interrupts, engine = BenchInterrupts(), LocalEngine()
    outcomes: list[Outcome] = []
    for profile in profiles:
        if interrupts.count:
            break
        outcome = await _measure(engine, profile, interrupts)
        if outcome.problem:
            narrate(f"{outcome.backend}: {outcome.problem}" + (f"; {outcome.hint}" if outcome.hint else ""))
        outcomes.append(outcome)
    return outcomes, bool(interrupts.count)


async def _measure(engine: LocalEngine, profile: Profile, interrupts: BenchInterrupts) -> Outcome:
    outcome = Outcome(backend=profile.backend.name)
    try:
        plan = await asyncio.to_thread(engine.preview, profile, LAUNCHED)
        outcome.run = await engine.launch(profile)
    except RankdeckError as error:  # this backend can't run or start; measure the others
        outcome.problem, outcome.hint = error.message, error.hint or ""
        return outcome
    run = LocalRun(find_run(outcome.run))
    narrate(
        f"{outcome.backend}: {outcome.run}, {plan.world_size} ranks on {', '.join(node.name for node in plan.nodes[:4])}"
    )
    interrupts.watch(run)
    try:
        await _follow(run, outcome)
    except RankdeckError as error:  # the supervisor is lost; results up to here are kept
        outcome.problem, outcome.hint = error.message, error.hint or ""
    interrupts.watch(None)
    return outcome


async def _follow(run: LocalRun, outcome: Outcome) -> None:
    """Prints results as they arrive, until the run has ended."""

    def look() -> None:
        found = results_of(run.paths)
        for result in found[len(outcome.results) :]:
            words = f"{result.collective:15}{moved_words(result.bytes):>9}{time_words(result.median_us):>10}"
            rate = f"{rate_words(result.busbw):>9} GB/s" if result.busbw is not None else ""
            click.echo(f"  {words}   p95{time_words(result.p95_us):>9}{rate}", err=True)
        outcome.results = found

    async def look_forever() -> None:
        while True:
            look()
            await asyncio.sleep(POLL)

    looking = asyncio.create_task(look_forever())
    try:
        async with contextlib.aclosing(snapshots(run)) as stream:
            async for snapshot, events in stream:
                last = snapshot
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


# --- what is shown -----------------------------------------------------------------------------------------------------------


def show_outcomes(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    """Prints the table that compares backends, or everything as JSON."""
    if as_json:
        print_json(outcomes)
        return
    measured = [outcome for outcome in outcomes if outcome.results]
    _show([Column(outcome.backend, outcome.results) for outcome in measured])
    for outcome in measured:
        if earlier := earlier_run(find_run(outcome.run)):
            narrate(f"{outcome.backend} has earlier results: rankdeck bench --compare {earlier.run} {outcome.run}")


def compare(runs: Sequence[RunPaths], *, as_json: bool) -> None:
    """Prints the results of runs side by side. A single run is compared with the newest earlier run of its kind. Raises UsageError: a run has no
    results, or there is no earlier run."""
    if refused := [run.run for run in runs if not results_of(run)]:
        hint = f"only runs of the recipe {RECIPE} and of rankdeck bench have results"
        raise UsageError(f"{refused[0]} has no results", hint=hint)
    if len(runs) == 1:
        earlier = earlier_run(runs[0])
        if earlier is None:
            hint = "name two runs or more"
            raise UsageError(f"no earlier run has the backend and layout of {runs[0].run}", hint=hint)
        runs = [earlier, *runs]
    found = [Outcome(backend=_backend_of(run), run=run.run, results=results_of(run)) for run in runs]
    if as_json:
        print_json(found)
    else:
        _show([Column(f"{outcome.run}: {outcome.backend}", outcome.results) for outcome in found])


def _show(columns: Sequence[Column]) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else NO_LIMIT
    if columns:
        for line in comparison(columns, width):
            print_line(line)


def exit_status(outcomes: Sequence[Outcome], *, interrupted: bool) -> int:
    """0 if every launched run succeeded, 1 if one failed, 3 if none could be launched, 130 after Ctrl-C."""
    if interrupted:
        return 128 + signal.SIGINT
    launched = [outcome for outcome in outcomes if outcome.run]
    if not launched:
        return CheckError.exit_status
    return 0 if all(outcome.state == "succeeded" for outcome in launched) else RankdeckError.exit_status
