"""`rankdeck sweep`: one profile with other values, run after run."""

import itertools
import random
import re
import secrets
import time
from collections.abc import Iterable

import click
import msgspec

from engine.client.jobs import runs_and_jobs
from engine.client.launch import begin_launch
from engine.client.sweeps.enqueue import enqueue, entry_of
from engine.client.sweeps.points import Point, planned
from engine.commands.arguments import JSON, PROFILE, SET, TRUST, permit_to_look, permit_to_run, read_given
from engine.commands.output import narrate, print_json, print_line, print_table
from engine.core.errors import CheckError, RankdeckError, UsageError
from engine.core.plan.plan import Swept
from engine.core.plan.secrets import shown_words
from engine.core.run.state import ENDED_WORDS
from engine.core.sweeps.grid import argument_axis, grid, key_axis
from engine.core.views.view import RunSummary
from engine.core.words import count
from engine.runs.listing import new_name, summaries
from engine.runs.queue.file import read_queue, wake_starter
from engine.runs.record import read_submitted

LOOK_PERIOD = 1.0  # seconds between two looks whether runs have started or ended
LOOKS = 5  # looks for one at what no supervisor does
_NAME = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@click.command()
@PROFILE
@click.option("--arg", "arguments", multiple=True, metavar="NAME=V1,V2", help="Values of an argument. Can be repeated.")
@click.option(
    "--over", "keys", multiple=True, metavar="KEY='[V1, V2]'", help="Values of a key of the profile, as TOML."
)
@click.option("--random", "number", type=click.IntRange(min=1), metavar="N", help="Draw N of the grid, none twice.")
@click.option("--seed", type=click.IntRange(min=0), metavar="S", help="Seed of --random; default: a new one.")
@click.option(
    "--parallel", type=click.IntRange(min=1), metavar="N", help="Most runs at once; default: 1, and any number of jobs."
)
@click.option(
    "--stop-when", "stop_when", metavar="RULE", help="When a run ends early: 'val_loss > sweep.best * 1.5 after 200'."
)
@click.option("--name", metavar="NAME", help="Of the sweep; default: sweep and four letters.")
@click.option("--dry-run", "--plan", "only_plan", is_flag=True, help="Show what would run; start nothing.")
@SET
@TRUST
@click.option("--detach", "-d", is_flag=True, help="Print the name of the sweep and return.")
@JSON
@click.pass_context
def sweep(
    ctx: click.Context,
    profile: str,
    *,
    arguments: tuple[str, ...],
    keys: tuple[str, ...],
    number: int | None,
    seed: int | None,
    parallel: int | None,
    stop_when: str | None,
    name: str | None,
    only_plan: bool,
    overrides: tuple[str, ...],
    trusts: bool,
    detach: bool,
    as_json: bool,
) -> None:
    """Run a profile with each combination of values: a grid, or --random N of it.

    --arg sets --lr X, --lr=X or lr=X, as the profile's arguments have it. Everything is checked before the first run starts. Each run is an
    ordinary run; those that wait are in the queue, and start without this command too. The exit status is 1 if one did not succeed.
    """
    if name is not None and not _NAME.fullmatch(name):
        hint = "letters, digits, dot, dash and underscore, at most 64, and not a number alone"
        raise UsageError(f"--name {name!r} is not a valid name", hint=hint)
    if seed is not None and number is None:
        raise UsageError("--seed belongs to --random", hint="add --random N, or leave out --seed")
    if number is not None and seed is None:
        seed = secrets.randbelow(1 << 32)
    axes = [*map(key_axis, keys), *map(argument_axis, arguments)]
    chosen = grid(axes, number or 0, None if number is None else random.Random(seed).sample)
    given = read_given(profile, overrides if stop_when is None else (*overrides, f"metrics.stop_when={stop_when}"))
    permit = permit_to_look(given, trusts=trusts) if only_plan else permit_to_run(given, trusts=trusts)
    points = planned(given.profile, given.places, axes, chosen, permit)
    if only_plan:
        _show(points, seed, as_json=as_json)
        return
    name = name or new_name("sweep")
    before, entries, jobs = {one.run for one in runs_of(name, summaries())}, [], list[str]()
    for place, one in enumerate(points, 1):
        swept = Swept(sweep=name, values=one.values, number=place, runs=len(points), seed=seed)
        if one.plan.submission is None:
            entries.append(entry_of(one.profile, one.plan, swept=swept, parallel=parallel or 1))
        else:
            jobs.append(_submit(one, swept, jobs, parallel))
    if entries:
        enqueue(entries)
    drawn, shows = "" if seed is None else f", drawn with --seed {seed}", "ps" if jobs else "queue"
    narrate(f"{name}: {count(len(points), 'run')}{drawn}; rankdeck {shows} shows those that wait")
    if detach:
        print_line(msgspec.json.encode({"sweep": name}).decode() if as_json else name)
        return
    try:
        ctx.exit(_follow(name, len(points), before, as_json=as_json))
    except KeyboardInterrupt:
        narrate(f"{name} goes on; rankdeck {'stop RUN' if jobs else f'queue cancel {name}'} cancels what waits")
        ctx.exit(130)


def _submit(point: Point, swept: Swept, jobs: list[str], parallel: int | None) -> str:
    """Submits the job of a run, and returns its number. `jobs`: those before it. `parallel`: how many may run at once; None: all."""
    after = jobs[-parallel] if parallel and len(jobs) >= parallel else ""
    try:
        submitted = read_submitted(begin_launch(point.profile, swept=swept, after=after).paths)
    except (RankdeckError, OSError) as error:
        said, hint = (error.message, error.hint) if isinstance(error, RankdeckError) else (str(error), "")
        done = f"{len(jobs)} of {count(swept.runs, 'job')} of {swept.sweep}"
        raise CheckError(f"{said}; {done} were submitted before", hint=hint) from None
    assert submitted is not None
    return submitted.job


def _show(points: list[Point], seed: int | None, *, as_json: bool) -> None:
    """The runs of a sweep before it starts."""
    rows = [("", *points[0].values, "RANKS", "BACKEND", "ARGUMENTS")]
    data = []
    for number, (_, plan, values) in enumerate(points, 1):
        args, ranks, backend = shown_words([*plan.program.args]), plan.world_size, plan.backend.name
        rows.append((str(number), *values.values(), str(ranks), backend, " ".join(args)))
        data.append({"values": values, "seed": seed, "ranks": ranks, "backend": backend, "args": args})
    if as_json:
        print_json(data)
        return
    print_table(rows)
    if seed is not None:
        narrate(f"drawn with --seed {seed}")


def _follow(sweep: str, most: int, before: set[str], *, as_json: bool) -> int:
    """Prints which runs start and end, until all have. Returns the exit status. `most`: how many there are. `before`: earlier runs of this name."""
    from engine.client.sweeps.starter import active_runs  # imports most of the core

    states: dict[str, str] = {}
    for look in itertools.count(1):
        entries = [one for one in read_queue().entries if one.sweep == sweep and one.state in ("queued", "starting")]
        listed = runs_and_jobs()
        active = active_runs(listed)
        going = {one.run for one in active if one.sweep == sweep}
        runs = [one for one in runs_of(sweep, listed) if one.run not in before]
        for one in runs:
            if one.run not in states and one.swept is not None:
                told = msgspec.json.encode({"run": one.run, "values": one.swept.values}).decode()
                print_line(told if as_json else f"{one.run}  {one.swept.words}")
            if states.get(one.run) != one.state:
                states[one.run] = one.state
                if one.state in ENDED_WORDS:
                    narrate(f"{one.run} " + (f"stopped early: {one.reason}" if one.is_early else one.state))
        if not going and not entries:
            break
        is_lost = any(one.run in going and not one.reachable for one in runs)
        if look % LOOKS == 0 and (is_lost or not active):  # no supervisor starts the next one
            wake_starter(waits=False)
        time.sleep(LOOK_PERIOD)
    for entry in read_queue().entries:
        if entry.sweep == sweep and entry.swept is not None:
            narrate(f"entry {entry.number} of the queue is {entry.state}: {entry.reason or entry.swept.words}")
    return int(sum(one.state == "succeeded" or one.is_early for one in runs) < most)


def runs_of(sweep: str, runs: Iterable[RunSummary]) -> list[RunSummary]:
    """Those of the runs that belong to a sweep, in the order in which they began."""
    return sorted((one for one in runs if one.sweep == sweep), key=lambda one: one.launched_at)
