"""The `rankdeck` command line: the app, commands about profiles and launches, and exit statuses. `runs` has the other commands."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import sys
from typing import IO

import click

from engine import __version__
from engine.backends import BACKENDS
from engine.client.engine import LocalEngine
from engine.client.run import LocalRun
from engine.commands import program, runs, show
from engine.commands.arguments import COLD, DETACH, JSON, PROFILE, RUN, SET, ProfileName, RunName
from engine.commands.checklist import Checklist
from engine.commands.config import config
from engine.commands.importing import import_
from engine.commands.launching import follow_launch
from engine.commands.nodes import nodes
from engine.commands.output import complain, warn
from engine.commands.recipes import recipes
from engine.core.errors import CheckError, RankdeckError, UsageError
from engine.core.plan.key_places import Places
from engine.core.plan.profile import Metrics, Profile
from engine.planning.profiles import find_profile, list_profiles, read_with_places
from engine.runs.listing import find_run
from engine.runs.settings import read_settings

EPILOG = """\b
Start here:
  rankdeck                        open the app: profiles, plans and runs on one screen
  rankdeck launch quickstart      train a small GPT on four CPU ranks for a minute
  rankdeck launch quickstart --detach, then: rankdeck attach -

RUN is the id of a run, a unique prefix of one, or - for the newest run.
"""


@click.group(invoke_without_command=True, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version")
@click.option(
    "--ascii",
    "ascii_only",
    is_flag=True,
    help="Draw with ASCII characters only; the app does so by itself on the Linux console and on VT terminals.",
)
@click.option("--slow", is_flag=True, help="Redraw the app only once a second, for slow connections.")
@click.option("--no-mouse", is_flag=True, help="Do not capture the mouse in the app.")
@click.option("--read-only", is_flag=True, help="Read-only: the app starts, changes and ends nothing.")
@click.option("--profile", "profile", type=ProfileName(), help="Open the app with this profile selected.")
@click.pass_context
def cli(
    ctx: click.Context, *, ascii_only: bool, slow: bool, no_mouse: bool, read_only: bool, profile: str | None
) -> None:
    """Launch, watch and rescue distributed PyTorch training.

    Without a command, the app opens. Everything the app does is also a command. Training keeps running when the terminal
    closes; `rankdeck attach RUN` returns to it.
    """
    ctx.obj = {"ascii": ascii_only, "slow": slow, "mouse": not no_mouse, "read_only": read_only}
    if ctx.invoked_subcommand is None:
        if profile is not None and profile not in (entry.name for entry in list_profiles()):
            find_profile(profile)  # says what is wrong
            raise UsageError(f"the app lists profiles by name, and there is no profile {profile!r}")
        ctx.exit(_open_app(ctx.obj, open_profile=profile))


for _command in runs.COMMANDS:
    cli.add_command(_command)
cli.add_command(recipes)
cli.add_command(program.run)
cli.add_command(program.new)
cli.add_command(import_)
cli.add_command(config)
cli.add_command(nodes)


def _open_app(
    look: dict[str, bool],
    *,
    open_run: str | None = None,
    open_profile: str | None = None,
    browser: tuple[int, int] | None = None,
) -> int:
    if browser is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the app needs a terminal", hint="rankdeck --help lists the commands that need none")
    settings = read_settings()
    gc.disable()  # until the first frame: garbage collection takes a tenth of the time to import and set up the app
    from tui.start import run

    engine = LocalEngine()
    if look["read_only"]:
        from engine.client.read_only import ReadOnlyEngine

        engine = ReadOnlyEngine()
    return run(engine, settings, open_run=open_run, open_profile=open_profile, browser=browser, **look)


def _read(profile: str, overrides: tuple[str, ...]) -> tuple[Profile, Places]:
    return read_with_places(find_profile(profile), overrides)


@cli.command()
@JSON
def profiles(*, as_json: bool) -> None:
    """List the profiles that can be launched by name.

    rankdeck looks in ./.rankdeck, then in the folders of your settings and your own, then among the profiles it ships. The first profile of a name wins.
    """
    show.show_profiles(list_profiles(), as_json=as_json)


@cli.command()
@click.argument("profile", type=ProfileName(), default="quickstart")
@SET
@JSON
@click.pass_context
def backends(ctx: click.Context, profile: str, *, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show which backends can run on a profile's nodes, and what the others lack.

    Without PROFILE: on this machine. Nothing is started. `rankdeck check` examines the backend of a profile more closely.
    """
    infos = LocalEngine().available(_read(profile, overrides)[0])
    show.show_backends(infos, as_json=as_json, ascii_only=ctx.obj["ascii"])


@cli.command()
@PROFILE
@SET
@JSON
def plan(profile: str, *, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what a launch would run: each rank's node, command line and environment. Nothing is started."""
    planned = LocalEngine().preview(*_read(profile, overrides))
    show.show_plan(planned, as_json=as_json)
    warn(planned)


@cli.command()
@PROFILE
@SET
@click.option("--quick", is_flag=True, help="Skip the import of torch, which takes seconds.")
@JSON
@click.pass_context
def check(ctx: click.Context, profile: str, *, overrides: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Check every node for problems that would otherwise appear after launch. Nothing is launched.

    Tests whether each node is reachable, has Python, torch and the backend, has the same script as the others, can connect to
    the first node, and more. The exit status is 3 if a check fails; warnings do not change it.
    """
    checklist = Checklist(as_json=as_json, ascii_only=ctx.obj["ascii"])
    asyncio.run(_fill(checklist, *_read(profile, overrides), full=not quick))
    ctx.exit(checklist.show())


async def _fill(checklist: Checklist, profile: Profile, places: Places, *, full: bool) -> None:
    async with contextlib.aclosing(LocalEngine().check(profile, full=full, places=places)) as findings:
        async for news in findings:
            checklist.take(news)


@cli.command()
@PROFILE
@SET
@DETACH
@COLD
@JSON
@click.pass_context
def launch(
    ctx: click.Context, profile: str, *, overrides: tuple[str, ...], detach: bool, cold: bool, as_json: bool
) -> None:
    """Start a run and print the output of its ranks.

    The exit status is that of the first rank that failed, or 128 + n for signal n. Ctrl-C asks whether to detach or to stop;
    without a terminal it stops the run.
    """
    ctx.exit(follow_launch(*_read(profile, overrides), detach=detach, cold=cold, as_json=as_json))


@cli.command()
@RUN
@click.pass_context
def attach(ctx: click.Context, run: str) -> None:
    """Open a run in the app. Without a terminal: print the output of its ranks."""
    found = find_run(run)
    if sys.stdin.isatty() and sys.stdout.isatty():
        ctx.exit(_open_app(ctx.obj, open_run=found.run))
    from engine.commands.follow import watch

    ctx.exit(asyncio.run(watch(LocalRun(found), owner=False)))


@cli.command()
@click.option(
    "--try",
    "file",
    type=click.File("rb"),
    required=True,
    help="A file with output of a script, or - for standard input.",
)
@click.argument("profile", type=ProfileName(), required=False)
@JSON
def metrics(file: IO[bytes], profile: str | None, *, as_json: bool) -> None:
    """Show line by line what rankdeck reads from the output of a script.

    [metrics] of PROFILE says what its names mean, and adds patterns.
    """
    from engine.commands.metrics import show_readings

    show_readings(file, _read(profile, ())[0].metrics if profile else Metrics(), as_json=as_json)


@cli.command()
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


@cli.command()
@click.argument("runs", nargs=-1, type=RunName())
@click.option("--backends", metavar="NAMES", help="Comma-separated; default: all.")
@click.option("--profile", type=ProfileName(), help="Take layout, launch policy and environment from this profile.")
@click.option("--nodes", metavar="NODES", help="Nodes to run on; default: this machine.")
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Ranks on each node; default: 2 if there is only this machine.",
)
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
    base = None if profile is None else _read(profile, ())[0]
    wanted = measure.make_profiles(backends, base, nodes, ranks, options)
    outcomes, interrupted = asyncio.run(measure.bench(wanted))
    measure.show_outcomes(outcomes, as_json=as_json)
    ctx.exit(measure.exit_status(outcomes, interrupted=interrupted))


@cli.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of 127.0.0.1; default: one that is free.")
@click.pass_context
def serve(ctx: click.Context, *, port: int) -> None:
    """Open the app in a browser: prints its address, which holds a token, and serves it until Ctrl-C.

    Options of the app come first: `rankdeck --read-only serve`. It listens on the loopback network only. Needs the package
    textual-serve: pip install 'rankdeck[serve]'.
    """
    try:
        from engine.commands.serve import serve as serve_page
    except ImportError as error:
        raise CheckError(
            f"serve needs the package textual-serve: {error}", hint="pip install 'rankdeck[serve]'"
        ) from None
    read_settings()  # an error in them is shown here, not in each browser
    flags = {"ascii": "--ascii", "slow": "--slow", "read_only": "--read-only"}
    serve_page([flag for name, flag in flags.items() if ctx.obj[name]], port)


@cli.command(hidden=True)
@click.argument("columns", type=int)
@click.argument("lines", type=int)
@click.pass_context
def in_browser(ctx: click.Context, *, columns: int, lines: int) -> None:
    """The app of one browser, which `serve` has started."""
    os.environ.pop("TMUX", None)  # what is copied goes to the browser, not into the terminal of `serve`
    os.environ["TEXTUAL_COLOR_SYSTEM"] = "truecolor"
    import textual.constants  # noqa: F401 - reads it

    del os.environ["TEXTUAL_COLOR_SYSTEM"]  # a launch would pass it on
    ctx.exit(_open_app(ctx.obj, browser=(columns, lines)))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  eval "$(rankdeck completion bash)"
    zsh:   eval "$(rankdeck completion zsh)"
    fish:  rankdeck completion fish | source
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "rankdeck", "_RANKDECK_COMPLETE").source())


def main() -> int:
    """Runs the command line. Returns the exit status; a user's error is two lines, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that is not UTF-8 shows "?" for characters it lacks
            stream.reconfigure(errors="replace")
    try:
        result = cli.main(prog_name="rankdeck", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except RankdeckError as error:
        complain(error)
        return error.exit_status
    except OSError as error:  # such as a full disk or a removed folder: a traceback would not help
        complain(RankdeckError(str(error)))
        return RankdeckError.exit_status
