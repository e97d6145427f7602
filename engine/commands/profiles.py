"""Commands about profiles, backends and nodes, with which no run is started, and `bench`."""

import asyncio
import contextlib
from typing import IO

import click

from engine.backends import BACKENDS
from engine.client.engine import LocalEngine
from engine.commands import show
from engine.commands.arguments import (
    JSON,
    PROFILE,
    PROFILE_NAME,
    RUN_NAME,
    SECRETS,
    SET,
    TRUST,
    permit_to_look,
    permit_to_run,
    read_given,
)
from engine.commands.checklist import Checklist
from engine.commands.output import print_json, print_table, warn
from engine.core.errors import UsageError
from engine.core.plan.batch.slurm import partition_rows
from engine.core.plan.profile import Metrics
from engine.core.terminal_text import visible
from engine.planning.profiles import list_profiles, profile_of_machine
from engine.runs.listing import find_run


@click.command()
@JSON
def profiles(*, as_json: bool) -> None:
    """List the profiles that can be launched by name.

    rankdeck looks in ./.rankdeck, then in the folders of your settings and your own, then among the profiles it ships. The first profile of a name wins.
    """
    entries = list_profiles()
    if as_json:
        print_json([{"name": e.name, "path": str(e.path), "source": e.source, "error": e.error,
                      "description": e.profile.description if e.profile else None} for e in entries])  # fmt: skip
        return
    rows = [("NAME", "BACKEND", "NODES", "RUNS", "FROM", "")]
    for entry in entries:
        if (found := entry.profile) is None:
            rows.append((entry.name, "!", "", "", entry.source, (entry.error or "").split("\n")[0]))
        else:
            what = found.recipe.name or found.recipe.script or found.recipe.module or ""
            nodes = visible(found.layout.words)
            rows.append((entry.name, found.backend.name, nodes, what, entry.source, found.description))
    print_table(rows)


@click.command()
@click.argument("profile", type=PROFILE_NAME, required=False)
@SET
@TRUST
@JSON
@click.pass_context
def backends(
    ctx: click.Context, profile: str | None, *, overrides: tuple[str, ...], trusts: bool, as_json: bool
) -> None:
    """Show which backends can run on a profile's nodes, and what the others lack.

    Without PROFILE: on this machine. Nothing is started. `rankdeck check` examines the backend of a profile more closely.
    """
    engine = LocalEngine()
    if profile:
        given = read_given(profile, overrides)
        infos = engine.available(given.profile, permit_to_look(given, trusts=trusts))
    else:
        infos = engine.available(profile_of_machine(overrides), engine.permit(None))
    show.show_backends(infos, as_json=as_json, ascii_only=ctx.obj["ascii"])


@click.command()
@PROFILE
@SET
@TRUST
@SECRETS
@JSON
def plan(profile: str, *, overrides: tuple[str, ...], trusts: bool, show_secrets: bool, as_json: bool) -> None:
    """Show what a launch would run: each rank's node, command line and environment. Nothing is launched.

    Nodes and programs are asked only for a profile that is yours, or that you have launched or trusted.
    """
    given = read_given(profile, overrides)
    planned = LocalEngine().preview(given.profile, permit_to_look(given, trusts=trusts), given.places)
    show.show_plan(planned, as_json=as_json, show_secrets=show_secrets)
    warn(planned)


@click.command()
@PROFILE
@SET
@click.option("--quick", is_flag=True, help="Skip the import of torch, which takes seconds.")
@TRUST
@JSON
@click.pass_context
def check(
    ctx: click.Context, profile: str, *, overrides: tuple[str, ...], quick: bool, trusts: bool, as_json: bool
) -> None:
    """Check every node for problems that would otherwise appear after launch. Nothing is launched.

    Tests whether each node is reachable, has Python, torch and the backend, has the same script as the others, can connect to
    the first node, and more. The exit status is 3 if a check fails; warnings do not change it.
    """
    checklist = Checklist(as_json=as_json, ascii_only=ctx.obj["ascii"])
    given = read_given(profile, overrides)
    permit = permit_to_run(given, trusts=trusts, by_path=False)

    async def fill() -> None:
        checking = LocalEngine().check(given.profile, permit, full=not quick, places=given.places)
        async with contextlib.aclosing(checking) as findings:
            async for news in findings:
                checklist.take(news)

    asyncio.run(fill())
    ctx.exit(checklist.show())


@click.command()
@JSON
def nodes(*, as_json: bool) -> None:
    """Show the partitions of Slurm, with the nodes, GPUs and CPUs that are free.

    A job that fits into what is free usually starts soon.
    """
    found = LocalEngine().partitions()
    if as_json:
        print_json(found)
    else:
        print_table([tuple(map(visible, row)) for row in partition_rows(found)])


@click.command()
@click.option(
    "--try",
    "file",
    type=click.File("rb"),
    required=True,
    help="A file with output of a script, or - for standard input.",
)
@click.argument("profile", type=PROFILE_NAME, required=False)
@JSON
def metrics(file: IO[bytes], profile: str | None, *, as_json: bool) -> None:
    """Show line by line what rankdeck reads from the output of a script.

    [metrics] of PROFILE says what its names mean, and adds patterns.
    """
    from engine.commands.metrics import show_readings

    show_readings(file, read_given(profile).profile.metrics if profile else Metrics(), as_json=as_json)


@click.command()
@click.argument("backend", type=click.Choice(BACKENDS))
@click.argument("word", required=False)
@JSON
def env(backend: str, word: str | None, *, as_json: bool) -> None:
    """Look up the environment variables of a backend: which exist, what they do, and which names do nothing.

    WORD limits the list to variables with that word in their name or description, such as ifname or timeout. Variables marked
    with * are set by rankdeck; the profile and your own environment override nearly all of them.
    """
    from engine.commands.env import show_variables

    show_variables(backend, word, as_json=as_json)


@click.command()
@click.argument("runs", nargs=-1, type=RUN_NAME)
@click.option("--backends", metavar="NAMES", help="Comma-separated; default: all.")
@click.option("--profile", type=PROFILE_NAME, help="Take layout, launch policy and environment from this profile.")
@click.option("--nodes", metavar="NODES", help="Nodes to run on; default: this machine.")
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Ranks on each node; default: 2 if there is only this machine.",
)
@TRUST
@click.option("--collectives", metavar="NAMES", help="Comma-separated, or all; default: all_reduce.")
@click.option("--sizes", metavar="SIZES", help="Such as 4:400M, 4:64M:x4 (the default), or 4,1K,2G.")
@click.option("--dtype", metavar="TYPE", help="Type of the elements; default: float32.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds for each size; default: 0.5."
)
@click.option("--compare", is_flag=True, help="Measure nothing; show the results of these RUNS side by side.")
@JSON
@click.pass_context
def bench(
    ctx: click.Context,
    *,
    runs: tuple[str, ...],
    backends: str | None,
    profile: str | None,
    nodes: str | None,
    ranks: int | None,
    trusts: bool,
    collectives: str | None,
    sizes: str | None,
    dtype: str | None,
    seconds: float | None,
    compare: bool,
    as_json: bool,
) -> None:
    """Compare backends: latency and bandwidth of collectives, one run for each backend.

    A backend that can't run here is named with the reason, and the others are measured; if none can run, the exit status is 3.
    --compare shows the results of earlier runs; a single RUN is compared with the run before it that has the same layout.
    """
    from engine.commands import bench as measure

    if compare:
        if not runs:
            raise UsageError("--compare needs a run", hint="rankdeck bench --compare - takes the newest")
        measure.compare([find_run(run) for run in runs], as_json=as_json)
        return
    if runs:
        raise UsageError(f"unexpected argument {runs[0]!r}", hint="to compare runs: rankdeck bench --compare RUN RUN")
    if profile is not None and nodes is not None:
        raise UsageError("--profile and --nodes exclude each other", hint="leave one of them out")
    options = {"collectives": collectives, "sizes": sizes, "dtype": dtype}
    options["seconds"] = None if seconds is None else f"{seconds:g}"
    base = None
    if profile is not None:
        base = (given := read_given(profile)).profile
        permit_to_run(given, trusts=trusts)
    wanted = measure.make_profiles(backends, base, nodes, ranks, options)
    outcomes, interrupted = asyncio.run(measure.bench(wanted))
    measure.show_outcomes(outcomes, as_json=as_json)
    ctx.exit(measure.exit_status(outcomes, interrupted=interrupted))
