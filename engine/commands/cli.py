"""The `rankdeck` command: every verb, headless. Words and exit statuses; what they do is in `engine.local`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from engine import __version__
from engine.backends import BACKENDS
from engine.client.engine import LocalEngine, LocalRun, all_runs, find_run, summaries
from engine.commands import show as report
from engine.core.errors import RankdeckError, UsageError
from engine.core.plan.profile import Places, Profile
from engine.core.run.events import Scope
from engine.planning.profiles import find_profile, list_profiles, read_with_places
from engine.runs.record import read_plan

EPILOG = """\b
Start here:
  rankdeck                        profiles, plans and runs on one screen
  rankdeck launch quickstart      four CPU ranks train a small GPT for a minute
  rankdeck launch quickstart --detach, then: rankdeck attach -

RUN is a run's id, any unique beginning of it, or - for the newest.
"""


class _Profile(click.ParamType[str]):
    """A profile's name or file, completed from those that exist."""

    name = "profile"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(entry.name) for entry in list_profiles() if entry.name.startswith(incomplete)]
        return names or [CompletionItem(incomplete, type="file")]


class _Run(click.ParamType[str]):
    """A run's id, completed from those that are kept."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(paths.run) for paths in all_runs() if paths.run.startswith(incomplete)]


PROFILE = click.argument("profile", type=_Profile())
RUN = click.argument("run", type=_Run())
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a profile key, such as layout.ranks_per_node=2.",
)


@click.group(invoke_without_command=True, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw the app with ASCII characters only.")
@click.option("--slow", is_flag=True, help="Paint the app once a second, for a slow line.")
@click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal.")
@click.option("--profile", "profile", type=_Profile(), help="Open the app with the cursor on this profile.")
@click.pass_context
def cli(ctx: click.Context, *, ascii_only: bool, slow: bool, no_mouse: bool, profile: str | None) -> None:
    """Launch, watch and rescue distributed PyTorch training.

    Without a command, the app opens. Everything that it can do, a command can do as well. Training goes on when the
    terminal closes; `rankdeck attach RUN` comes back to it.
    """
    ctx.obj = {"ascii": ascii_only, "slow": slow, "mouse": not no_mouse}
    if ctx.invoked_subcommand is None:
        ctx.exit(_open_app(ctx.obj, open_profile=profile))


def _open_app(look: dict[str, bool], *, open_run: str | None = None, open_profile: str | None = None) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the app needs a terminal", hint="rankdeck --help lists the commands that do not")
    gc.disable()  # until the first frame: collecting while the app is imported and set up takes a tenth of that time
    from tui.app import run

    return run(LocalEngine(), open_run=open_run, open_profile=open_profile, **look)


@cli.command()
@JSON
def profiles(*, as_json: bool) -> None:
    """List the profiles that can be launched by name.

    They are looked up in ./.rankdeck, in your own folder, and among those that come with rankdeck; a nearer one hides a
    farther one of the same name.
    """
    report.show_profiles(list_profiles(), as_json=as_json)


@cli.command()
@click.argument("profile", type=_Profile(), default="quickstart")
@SET
@JSON
@click.pass_context
def backends(ctx: click.Context, profile: str, *, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show which backends can run on a profile's nodes, and why the others can't.

    Without PROFILE, on this machine. Nothing is started. `rankdeck check` looks closer at the one that a profile names.
    """
    infos = LocalEngine().available(_read(profile, overrides)[0])
    report.show_backends(infos, as_json=as_json, ascii_only=ctx.obj["ascii"])


@cli.command()
@PROFILE
@SET
@JSON
def plan(profile: str, *, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what would run: every rank's node, command line and environment. Nothing is started."""
    decided = LocalEngine().preview(*_read(profile, overrides))
    report.show_plan(decided, as_json=as_json)
    report.warn(decided)


@cli.command()
@PROFILE
@SET
@click.option("--quick", is_flag=True, help="Do not import torch, which takes seconds.")
@JSON
@click.pass_context
def check(ctx: click.Context, profile: str, *, overrides: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Look on every node for what would fail late. Nothing is launched.

    Can the node be reached, has it the Python, torch and backend, is the script the same everywhere, can every node reach
    the first one, and more. The exit status is 3 where a check failed; warnings do not change it.
    """
    checklist = report.Checklist(as_json=as_json, ascii_only=ctx.obj["ascii"])
    asyncio.run(_fill(checklist, *_read(profile, overrides), full=not quick))
    ctx.exit(checklist.show())


async def _fill(checklist: report.Checklist, profile: Profile, places: Places, *, full: bool) -> None:
    async with contextlib.aclosing(LocalEngine().check(profile, full=full, places=places)) as findings:
        async for news in findings:
            checklist.take(news)


@cli.command()
@PROFILE
@SET
@click.option("--detach", "-d", is_flag=True, help="Print the run's id and return.")
@JSON
@click.pass_context
def launch(ctx: click.Context, profile: str, *, overrides: tuple[str, ...], detach: bool, as_json: bool) -> None:
    """Start a run and follow what its ranks print.

    The exit status is that of the first rank that failed, 128 + n for signal n. Ctrl-C asks whether to detach or to stop;
    without a terminal it stops the run.
    """
    run = asyncio.run(LocalEngine().launch(*_read(profile, overrides)))
    click.echo(msgspec.json.encode({"run": run}).decode() if as_json else run)
    report.warn(read_plan(find_run(run)))
    if not detach:
        from engine.commands.follow import watch

        ctx.exit(asyncio.run(watch(LocalRun(find_run(run)))))


def _read(profile: str, overrides: tuple[str, ...]) -> tuple[Profile, Places]:
    return read_with_places(find_profile(profile), overrides)


@cli.command()
@click.argument("backend", type=click.Choice(BACKENDS))
@click.argument("word", required=False)
@JSON
def env(backend: str, word: str | None, *, as_json: bool) -> None:
    """Look up environment variables of a backend: what there is, what it does, and what only seems to be there.

    WORD shows only those that have it in their name or description, such as ifname or timeout. Variables that rankdeck sets
    by itself are marked; what a profile or your own environment says wins over nearly all of these.
    """
    from engine.commands.env import show_variables

    show_variables(backend, word, as_json=as_json)


@cli.command()
@click.option("--all", "-a", "everything", is_flag=True, help="Runs that have ended too.")
@JSON
def ps(*, everything: bool, as_json: bool) -> None:
    """List runs, newest first; with --all, those that go on before those that have ended."""
    report.show_runs(summaries(), everything=everything, as_json=as_json)


@cli.command()
@RUN
@JSON
def status(run: str, *, as_json: bool) -> None:
    """Show the state of a run and of each of its ranks."""
    found = LocalRun(find_run(run))
    report.show_status(asyncio.run(found.snapshot()), as_json=as_json)


@cli.command()
@click.argument("run", type=_Run(), required=False)
@click.option("--file", "-f", "log", metavar="LOG", help="The log of any job; - reads standard input.")
@click.option("--attempt", type=click.IntRange(min=0), help="One attempt; left out: the newest that failed.")
@JSON
@click.pass_context
def diagnose(ctx: click.Context, run: str | None, *, log: str | None, attempt: int | None, as_json: bool) -> None:
    """Say why a run failed: the root cause, what helps, and what only followed from it.

    RUN may go on, hold, or have ended. With --file, any log: torchrun's, mpirun's, a single script's, ssh's. The exit status
    is 1 where a log shows nothing that is known.
    """
    if (run is None) == (log is None):
        raise UsageError("diagnose takes a run, or a log", hint="rankdeck diagnose -, or rankdeck diagnose --file LOG")
    if log is not None and attempt is not None:
        raise UsageError("a log has no attempts to choose from", hint="leave out --attempt")
    from engine.commands.diagnose import diagnose_file, diagnose_run

    found = diagnose_file(log) if log is not None else diagnose_run(find_run(run or "-"), attempt)
    report.show_diagnosis(found, as_json=as_json)
    ctx.exit(found.exit_status)


@cli.command()
@RUN
@click.option("--rank", "-r", type=click.IntRange(min=0), help="One rank only, its bytes unchanged.")
@click.option("--attempt", type=click.IntRange(min=0), help="An earlier attempt; left out: the newest.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends.")
@click.pass_context
def logs(ctx: click.Context, run: str, *, rank: int | None, attempt: int | None, follow: bool) -> None:
    """Print what the ranks of a run wrote."""
    from engine.commands.follow import print_logs

    try:
        status = asyncio.run(print_logs(LocalRun(find_run(run)), rank=rank, attempt=attempt, follow=follow))
    except BrokenPipeError:  # whoever read has seen enough
        report.close_stdout()
        status = 0
    ctx.exit(status)


@cli.command()
@RUN
@click.pass_context
def attach(ctx: click.Context, run: str) -> None:
    """Watch a run in the app. Without a terminal: follow what its ranks print."""
    found = find_run(run)
    if sys.stdin.isatty() and sys.stdout.isatty():
        ctx.exit(_open_app(ctx.obj, open_run=found.run))
    from engine.commands.follow import watch

    ctx.exit(asyncio.run(watch(LocalRun(found), owner=False)))


@cli.command()
@RUN
@click.option(
    "--failed", "scope", flag_value="smallest", default=True, help="Start the dead ranks only, where that is possible."
)
@click.option("--all", "scope", flag_value="all", help="Start a new attempt of all ranks.")
def restart(run: str, *, scope: Scope) -> None:
    """Bring a run back, the smallest way that is correct.

    Where the script uses rankdeck.elastic, the dead ranks rejoin and the others keep running. Otherwise all ranks start
    again as a new attempt, resume from their checkpoint, and the reason is said.
    """
    _ask(run, lambda found: found.restart(scope))


@cli.command()
@RUN
@click.option("--rank", "-r", type=click.IntRange(min=0), required=True, help="Which rank.")
@click.option("--signal", "-s", "name", default="KILL", show_default=True, help="Name or number of the signal.")
def kill(run: str, *, rank: int, name: str) -> None:
    """Send a signal to one rank and its children."""
    number = report.signal_number(name)
    _ask(run, lambda found: found.kill(rank, number))


@cli.command()
@RUN
@JSON
def stacks(run: str, *, as_json: bool) -> None:
    """Show who waits for whom in collectives, and where every rank is in its Python code; ranks in the same place are told once.
    Works while they hang."""
    report.show_stacks(asyncio.run(LocalRun(find_run(run)).rank_stacks()), as_json=as_json)


@cli.command()
@RUN
@click.option("--now", "at_once", is_flag=True, help="SIGKILL at once, without the profile's stop ladder.")
def stop(run: str, *, at_once: bool) -> None:
    """End a run. Its ranks get the signals of the profile's stop ladder, one after the other."""
    _ask(run, lambda found: found.stop(at_once=at_once))


def _ask(run: str, request: Callable[[LocalRun], Coroutine[Any, Any, str]]) -> None:
    click.echo(asyncio.run(request(LocalRun(find_run(run)))))


@cli.command()
@RUN
@click.option("--timeout", "-t", type=click.FloatRange(min=0), help="Give up after so many seconds, with status 124.")
@JSON
@click.pass_context
def wait(ctx: click.Context, run: str, *, timeout: float | None, as_json: bool) -> None:
    """Wait until a run has ended, or holds because a rank failed. The exit status is that of `launch`."""
    from engine.commands.follow import wait_for_end

    ctx.exit(asyncio.run(wait_for_end(LocalRun(find_run(run)), seconds=timeout, as_json=as_json)))


@cli.command()
@click.argument("runs", nargs=-1, type=_Run())
@click.option("--backends", metavar="NAMES", help="Comma-separated; left out: all that there are.")
@click.option("--profile", type=_Profile(), help="Take layout, launch policy and environment from this profile.")
@click.option("--nodes", metavar="NODES", help="Where ranks go; left out: this machine.")
@click.option(
    "--ranks", type=click.IntRange(min=1), metavar="N", help="On each node; left out: 2 on this machine alone."
)
@click.option("--collectives", metavar="NAMES", help="Comma-separated, or all; left out: all_reduce.")
@click.option("--sizes", metavar="SIZES", help="Such as 4:400M, 4:64M:x4 (the default), or 4,1K,2G.")
@click.option("--dtype", metavar="TYPE", help="Of the elements; left out: float32.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", help="For each size; left out: 0.5."
)
@click.option("--compare", is_flag=True, help="Measure nothing: show the results of these RUNS side by side.")
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
    """Measure backends against each other: latency and bandwidth of collectives, one run for each backend.

    A backend that can't run here is named with the reason, and the others go on; where none can, the exit status is 3.
    With --compare, results of earlier runs; of one RUN, beside those of the run before it with the same layout.
    """
    from engine.commands import bench as measure

    if compare:
        if not runs:
            raise UsageError("--compare needs a run", hint="rankdeck bench --compare - takes the newest")
        measure.compare([find_run(run) for run in runs], as_json=as_json)
        return
    if runs:
        raise UsageError(f"{runs[0]!r} is no option", hint="runs are compared by: rankdeck bench --compare RUN RUN")
    if profile is not None and nodes is not None:
        raise UsageError("--profile and --nodes exclude each other", hint="leave one of them out")
    options = {"collectives": collectives, "sizes": sizes, "dtype": dtype}
    options["seconds"] = None if seconds is None else f"{seconds:g}"
    base = None if profile is None else _read(profile, ())[0]
    profiles = measure.make_profiles(backends, base, nodes, ranks, options)
    outcomes, interrupted = asyncio.run(measure.bench(profiles))
    measure.show_outcomes(outcomes, as_json=as_json)
    ctx.exit(measure.exit_status(outcomes, interrupted=interrupted))


@cli.command()
@click.argument("runs", nargs=-1, type=_Run())
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@JSON
def clean(runs: tuple[str, ...], *, yes: bool, as_json: bool) -> None:
    """Remove runs that have ended: their logs, curves and checkpoints. Without a RUN: all that have ended."""
    from engine.commands.clean import clean_runs

    clean_runs([find_run(run) for run in runs], yes=yes, as_json=as_json)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

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
    """Runs the command line. Returns the exit status; an error of the user's is two lines, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that is not UTF-8 shows "?" for what it lacks
            stream.reconfigure(errors="replace")
    try:
        result = cli.main(prog_name="rankdeck", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except RankdeckError as error:
        report.complain(error)
        return error.exit_status
    except OSError as error:  # a disk that is full, a folder that was taken away: nothing of ours to trace
        report.complain(RankdeckError(str(error)))
        return RankdeckError.exit_status
