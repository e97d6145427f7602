"""`rankdeck sweep`: one profile with other values, run after run."""

import random
import re
import secrets
import time
from typing import Any

import click
import msgspec

from engine.client.sweeps.enqueue import enqueue, entry_of
from engine.client.sweeps.points import Point, Wanted, planned
from engine.commands.arguments import JSON, PROFILE, SET, TRUST, permit_to_look, permit_to_run, read_given
from engine.commands.output import narrate, print_json, print_line, print_table
from engine.core.errors import UsageError
from engine.core.plan.secrets import shown_words
from engine.core.run.state import ENDED_WORDS
from engine.core.sweeps.grid import argument_axis, grid, key_axis
from engine.core.views.view import RunSummary
from engine.core.words import count
from engine.runs.listing import new_name, summaries
from engine.runs.queue.file import read_queue, wake_starter

LOOK_PERIOD = 1.0  # seconds between two looks whether runs have started or ended
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@click.command()
@PROFILE
@click.option("--arg", "arguments", multiple=True, metavar="NAME=V1,V2", help="Values of an argument. Can be repeated.")
@click.option(
    "--over", "keys", multiple=True, metavar="KEY='[V1, V2]'", help="Values of a key of the profile, as TOML."
)
@click.option("--random", "number", type=click.IntRange(min=1), metavar="N", help="Draw N of the grid, none twice.")
@click.option("--seed", type=click.IntRange(min=0), metavar="S", help="Seed of --random; default: a new one.")
@click.option("--parallel", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Runs at once.")
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
    parallel: int,
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
        hint = "letters, digits, dot, dash and underscore, at most 64"
        raise UsageError(f"--name {name!r} is not a valid name", hint=hint)
    if seed is not None and number is None:
        raise UsageError("--seed belongs to --random", hint="add --random N, or leave out --seed")
    if number is not None and seed is None:
        seed = secrets.randbelow(1 << 32)
    axes = [*map(key_axis, keys), *map(argument_axis, arguments)]
    chosen = grid(axes, number or 0, None if number is None else random.Random(seed).sample)
    given = read_given(profile, overrides)
    permit = permit_to_look(given, trusts=trusts) if only_plan else permit_to_run(given, trusts=trusts)
    wanted = Wanted(name or new_name("sweep"), axes, chosen, seed)
    points = planned(given.profile, given.places, wanted, permit)
    if only_plan:
        _show(points, seed, as_json=as_json)
        return
    before = {one.run for one in runs_of(wanted.name)}
    enqueue([entry_of(one.profile, one.plan, swept=one.swept, parallel=parallel) for one in points])
    drawn = "" if seed is None else f", drawn with --seed {seed}"
    narrate(f"{wanted.name}: {count(len(points), 'run')}{drawn}; rankdeck queue shows those that wait")
    if detach:
        print_line(msgspec.json.encode({"sweep": wanted.name}).decode() if as_json else wanted.name)
        return
    try:
        ctx.exit(_follow(wanted.name, len(points), before, as_json=as_json))
    except KeyboardInterrupt:
        narrate(f"{wanted.name} goes on; rankdeck queue cancel {wanted.name} removes what waits")
        ctx.exit(130)


def _show(points: list[Point], seed: int | None, *, as_json: bool) -> None:
    """The runs of a sweep before it starts."""
    if as_json:
        print_json([_data(point) for point in points])
        return
    names = list(points[0].swept.values)
    rows = [("", *names, "RANKS", "BACKEND", "ARGUMENTS")]
    for point in points:
        plan, args = point.plan, " ".join(shown_words([*point.plan.program.args]))
        own = point.swept.values.values()
        rows.append((str(point.swept.number), *own, str(plan.world_size), plan.backend.name, args))
    print_table(rows)
    if seed is not None:
        narrate(f"drawn with --seed {seed}")


def _data(point: Point) -> dict[str, Any]:
    plan, swept = point.plan, point.swept
    own = {"number": swept.number, "values": swept.values, "seed": swept.seed}
    args = shown_words([*plan.program.args])
    return own | {"ranks": plan.world_size, "backend": plan.backend.name, "args": args}


def _follow(sweep: str, runs: int, before: set[str], *, as_json: bool) -> int:
    """Prints which runs start and end, until all have. Returns the exit status. `runs`: how many there are. `before`: earlier runs of this name."""
    states: dict[str, str] = {}
    while True:
        entries = [one for one in read_queue().entries if one.sweep == sweep and one.state in ("queued", "starting")]
        for one in runs_of(sweep):
            if one.run not in {*before, *states} and one.swept is not None:
                told = msgspec.json.encode({"run": one.run, "values": one.swept.values}).decode()
                print_line(told if as_json else f"{one.run}  {one.swept.words}")
            if one.run not in before and states.get(one.run) != one.state:
                states[one.run] = one.state
                if one.state in ENDED_WORDS:
                    narrate(f"{one.run} {one.state}")
        is_over = all(state in ENDED_WORDS for state in states.values())
        if is_over and not entries:
            break
        if is_over:  # nothing active would start the next
            wake_starter(waits=False)
        time.sleep(LOOK_PERIOD)
    for entry in read_queue().entries:
        if entry.sweep == sweep and entry.swept is not None:
            narrate(f"entry {entry.number} of the queue is {entry.state}: {entry.reason or entry.swept.words}")
    return int(list(states.values()).count("succeeded") < runs)


def runs_of(sweep: str) -> list[RunSummary]:
    """The runs of a sweep that have begun, in their order."""
    return sorted((one for one in summaries() if one.sweep == sweep), key=lambda one: one.launched_at)
