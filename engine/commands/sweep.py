"""`rankdeck sweep`: one profile with other values, run after run."""

import random
import re
import secrets
import time
from typing import Any

import click
import msgspec

from engine.client.launch import begin_launch
from engine.client.starting import start_supervisor
from engine.client.sweeps.points import Point, Wanted, planned
from engine.commands.arguments import JSON, PROFILE, SET, TRUST, permit_to_look, permit_to_run, read_given
from engine.commands.output import narrate, print_json, print_line, print_table
from engine.core.errors import UsageError
from engine.core.plan.secrets import shown_words
from engine.core.run.state import ENDED_WORDS
from engine.core.sweeps.grid import argument_axis, grid, key_axis
from engine.runs.listing import new_name, summarise
from engine.runs.paths import RunPaths

END_PERIOD = 0.5  # seconds between two looks whether runs have ended
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
    as_json: bool,
) -> None:
    """Run a profile with each combination of values: a grid, or --random N of it.

    --arg sets --lr X, --lr=X or lr=X, as the profile's arguments have it. Everything is checked before the first run starts. Each run is an
    ordinary run. The exit status is 1 if one of them did not succeed.
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
    ctx.exit(_run(points, parallel, as_json=as_json))


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


def _run(points: list[Point], parallel: int, *, as_json: bool) -> int:
    """Runs all points, some at once. Returns the exit status."""
    waiting, active, failed = list(points), dict[str, RunPaths](), 0
    first = points[0].swept
    narrate(f"{first.sweep}: {first.runs} runs" + ("" if first.seed is None else f", drawn with --seed {first.seed}"))
    try:
        while waiting or active:
            for run, paths in list(active.items()):
                if (state := summarise(paths).state) in ENDED_WORDS or state == "unreadable":
                    del active[run]
                    failed += state != "succeeded"
                    narrate(f"{run} {state}")
            while waiting and len(active) < parallel:
                point = waiting.pop(0)
                paths = begin_launch(point.profile, point.places, swept=point.swept).paths
                start_supervisor(paths)
                active[paths.run] = paths
                told = msgspec.json.encode({"run": paths.run, "values": point.swept.values}).decode()
                print_line(told if as_json else f"{paths.run}  {point.swept.words}")
            time.sleep(END_PERIOD)
    except KeyboardInterrupt:
        left = f"; {len(waiting)} were not started" if waiting else ""
        narrate(f"{len(active)} runs go on{left}")
        return 130
    return int(failed > 0)
