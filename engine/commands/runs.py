"""Commands about runs that were launched: list, look, rescue, end, remove."""

import asyncio
from typing import Any

import click

from engine.client.jobs import runs_and_jobs
from engine.client.run import LocalRun, user_name
from engine.commands import show
from engine.commands.arguments import JSON, RUN, RUN_NAME, RUN_OR_LOG, SECRETS, Age, Moment, Pattern, is_file
from engine.commands.output import close_stdout, print_json, print_line
from engine.core.errors import (
    OtherVersionError,
    SupervisorDefectError,
    SupervisorElsewhereError,
    SupervisorError,
    SuspendedJobError,
    UsageError,
)
from engine.core.failures.stacks import story, waits
from engine.core.log_levels import LEVELS
from engine.core.run.events import Scope
from engine.runs.listing import find_run
from engine.runs.record import read_plan
from engine.runs.templates import templates


@click.command()
@click.option("--all", "-a", "everything", is_flag=True, help="Also list runs that have ended.")
@JSON
def ps(*, everything: bool, as_json: bool) -> None:
    """List runs, newest first. With --all, active runs come before ended ones. Templates follow: processes that make the next launch fast."""
    show.show_runs(runs_and_jobs(), everything=everything, as_json=as_json)
    for _, one in templates() if not as_json else ():
        print_line(f"template {one.pid} ({one.python}) waits for the next launch; rankdeck clean --template ends it")


@click.command()
@RUN
@JSON
def status(run: str, *, as_json: bool) -> None:
    """Show the state of a run and of each of its ranks."""
    paths = find_run(run)
    show.show_status(asyncio.run(LocalRun(paths).snapshot()), read_plan(paths).program, as_json=as_json)


@click.command()
@click.argument("subjects", metavar="[RUN|FILE...]", type=RUN_OR_LOG, nargs=-1)
@click.option(
    "--file", "-f", "logs", metavar="LOG", multiple=True, help="Diagnose the log of any job; - reads standard input."
)
@click.option("--attempt", type=click.IntRange(min=0), help="Which attempt; default: the newest one that failed.")
@click.option("--open", "opens", is_flag=True, help="Show the logs in the app, as a run that has ended.")
@JSON
@click.pass_context
def diagnose(
    ctx: click.Context,
    subjects: tuple[str, ...],
    *,
    logs: tuple[str, ...],
    attempt: int | None,
    opens: bool,
    as_json: bool,
) -> None:
    """Explain why a run or any other job failed: the root cause, what to do, and which failures only followed.

    RUN can be active, holding or ended; - is the newest. A word that names an existing file, or has a slash, is a log or a folder of logs: of torchrun,
    mpirun, Slurm, a single script, or ssh. Several logs are read as those of one job. The exit status is 1 if logs show no known failure.
    """
    files = [*logs, *(word for word in subjects if is_file(word))]
    runs = [word for word in subjects if not is_file(word)]
    if len(runs) + bool(files) != 1:
        raise UsageError("diagnose takes one run, or logs", hint="rankdeck diagnose -, or rankdeck diagnose LOG…")
    if files and attempt is not None:
        raise UsageError("--attempt belongs to a run, not to logs", hint="leave out --attempt")
    if opens and not files:
        raise UsageError("--open is for logs", hint="rankdeck attach RUN opens a run")
    if opens:
        from engine.commands.opening import open_logs  # and the app

        ctx.exit(open_logs(files, ctx.obj))
    from engine.commands.diagnose import diagnose_files, diagnose_run

    found = diagnose_files(files) if files else diagnose_run(find_run(runs[0]), attempt)
    show.show_diagnosis(found, as_json=as_json)
    ctx.exit(found.exit_status)


@click.command()
@RUN
@click.option("--rank", "-r", type=click.IntRange(min=0), help="Only this rank.")
@click.option("--attempt", type=click.IntRange(min=0), help="Which attempt; default: the newest.")
@click.option(
    "--since", type=Moment(), metavar="TIME", help="Only lines since then: 10m (ago), 14:05, 2026-11-24T14:05."
)
@click.option("--grep", type=Pattern(), metavar="PATTERN", help="Only lines with this regular expression.")
@click.option("--level", type=click.Choice(LEVELS), help="Only lines of this level, and of more serious ones.")
@click.option("--split", is_flag=True, help="Print the ranks' stderr to stderr, and every byte as it was written.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing until the run ends.")
@click.pass_context
def logs(ctx: click.Context, /, *, run: str, follow: bool, **wanted: Any) -> None:
    """Print what the ranks of a run wrote to stdout and stderr, in the order in which they wrote it.

    Of a progress bar, only the last state is printed, unless with --split.
    The order is known to about a twentieth of a second, and so are the times for --since.
    """
    from engine.commands.logs import Wanted, print_logs

    try:
        status = asyncio.run(print_logs(LocalRun(find_run(run)), Wanted(**wanted), follow=follow))
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        close_stdout()
        status = 0
    ctx.exit(status)


@click.command()
@RUN
@click.option(
    "--failed",
    "scope",
    flag_value="smallest",
    default=True,
    help="Start only the dead ranks if possible (the default).",
)
@click.option("--all", "scope", flag_value="all", help="Start a new attempt of all ranks.")
def restart(run: str, *, scope: Scope) -> None:
    """Restart the dead ranks of a run, or all ranks if that is necessary.

    If the script uses rankdeck.elastic, only the dead ranks are started, and the others keep running. Otherwise all ranks
    start again as a new attempt and resume from their checkpoint; the command prints the reason.
    """
    click.echo(asyncio.run(LocalRun(find_run(run)).restart(scope)))


@click.command()
@RUN
@click.option("--rank", "-r", type=click.IntRange(min=0), required=True, help="Which rank.")
@click.option("--signal", "-s", "name", default="KILL", show_default=True, help="Name or number of the signal.")
def kill(run: str, *, rank: int, name: str) -> None:
    """Send a signal to one rank and its child processes."""
    number = show.signal_number(name)
    click.echo(asyncio.run(LocalRun(find_run(run)).kill(rank, number)))


@click.command()
@RUN
@JSON
def stacks(run: str, *, as_json: bool) -> None:
    """Show where every rank is in its Python code, and which ranks wait for which in collectives.

    Works while ranks hang. Ranks with the same stack are shown once.
    """
    found = asyncio.run(LocalRun(find_run(run)).rank_stacks())
    if as_json:
        ranks = [{"rank": one.rank, "text": one.text, "reason": one.reason, "children": one.children} for one in found]
        print_json({"collectives": waits(found), "ranks": ranks})
        return
    for line in story(found):
        print_line(line)


@click.command()
@RUN
@click.option("--now", "at_once", is_flag=True, help="Send SIGKILL immediately, without the profile's stop ladder.")
@click.option("--no-wait", is_flag=True, help="Return before the run has ended.")
def stop(run: str, *, at_once: bool, no_wait: bool) -> None:
    """End a run, and wait until it has ended. Its ranks receive the signals of the profile's stop ladder, one after the other.

    With --now, a run whose supervisor can't start is ended without it.
    """
    from engine.commands.follow import stop_and_wait

    paths = find_run(run)
    try:
        click.echo(asyncio.run(stop_and_wait(LocalRun(paths), at_once=at_once, wait=not no_wait)))
    except (SupervisorElsewhereError, SuspendedJobError):
        raise
    except SupervisorError as error:
        if not at_once and isinstance(error, OtherVersionError):
            raise
        if not at_once:
            hint = f"rankdeck stop --now {paths.run} ends it without a supervisor"
            raise SupervisorError(error.message, hint=f"{error.hint}; {hint}" if error.hint else hint) from None
        from engine.supervisor.lifetime.abandon import abandon, end_supervisor

        if isinstance(error, OtherVersionError | SupervisorDefectError):
            end_supervisor(paths)
        asyncio.run(abandon(paths, user_name()))
        click.echo(f"{paths.run} was stopped without its supervisor: {error.message}")


@click.command()
@RUN
@click.option("--timeout", "-t", type=click.FloatRange(min=0), help="Give up after this many seconds, with status 124.")
@JSON
@click.pass_context
def wait(ctx: click.Context, run: str, *, timeout: float | None, as_json: bool) -> None:
    """Wait until a run has ended, or holds because a rank failed. The exit status is that of `launch`."""
    from engine.commands.follow import wait_for_end

    ctx.exit(asyncio.run(wait_for_end(LocalRun(find_run(run)), seconds=timeout, as_json=as_json)))


KEEP = click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the N newest ended runs.")
OLDER = click.option("--older", type=Age(), metavar="AGE", help="Only runs that ended longer ago, such as 12h or 30d.")
YES = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


@click.command()
@click.argument("runs", nargs=-1, type=RUN_NAME)
@KEEP
@OLDER
@YES
@click.option("--template", is_flag=True, help="Remove no run; end the templates, which wait for the next launch.")
@JSON
def clean(
    runs: tuple[str, ...], *, keep: int | None, older: float | None, yes: bool, template: bool, as_json: bool
) -> None:
    """Remove ended runs with their logs, curves and checkpoints. Without RUN: all ended runs, or those that --keep and --older choose.

    A run whose launch failed before its plan was written counts as ended.
    """
    from engine.commands.clean import clean_runs, end_templates, old_runs

    if template:
        if runs or keep is not None or older is not None:
            raise UsageError("--template removes no run", hint="leave out RUN, --keep and --older")
        end_templates(as_json=as_json)
        return
    if runs and (keep is not None or older is not None):
        hint = "name runs, or select them with --keep and --older"
        raise UsageError("RUN and --keep or --older exclude each other", hint=hint)
    chosen = [find_run(run) for run in runs] if runs else old_runs(keep or 0, older or 0.0)
    clean_runs(chosen, named=bool(runs), yes=yes, as_json=as_json)


@click.command()
@KEEP
@OLDER
@YES
@JSON
def gc(*, keep: int | None, older: float | None, yes: bool, as_json: bool) -> None:
    """Remove old runs that have ended. Asks first.

    Starred runs stay, and at least one of --keep and --older must say which others to leave.
    """
    from engine.commands.clean import clean_runs, old_runs

    if keep is None and older is None:
        raise UsageError("gc needs --keep or --older", hint="for example: rankdeck gc --keep 20 --older 30d")
    clean_runs(old_runs(keep or 0, older or 0.0), named=False, yes=yes, as_json=as_json)


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--sweep", metavar="NAME", help="Only runs of this sweep, with their values, best first.")
@click.option("--group", "over", metavar="SETTING", help="With --sweep: one row for runs that differ in this only.")
@click.option(
    "--sort", "key", metavar="KEY", help="What to sort by, also a metric; default: launched, or best with --sweep."
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--limit", "-n", type=click.IntRange(min=1), metavar="N", help="At most N runs.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with --sweep.")
@JSON
def runs(
    words: tuple[str, ...], *, sweep: str | None, over: str | None, key: str | None, as_csv: bool, **wanted: Any
) -> None:
    """List the history: date, duration, final values, what differs from the run before, and size on disk.

    WORDs filter: each must occur in a run's id, state, backend, reason, changed settings or note; '!WORD' must not.
    KEY is launched, ended, duration, name, state, step, size, starred, or a metric, whose lowest value comes first. With --sweep it may be a varied
    setting, and a metric is shown with its last and its best value: the lowest of a loss or error, the highest of an accuracy or score.
    """
    if sweep is not None:
        from engine.commands.leaderboard import show_sweep

        show_sweep(sweep, words, key or "", over, as_csv=as_csv, **wanted)
        return
    if as_csv or over is not None:
        option = "--csv" if as_csv else "--group"
        raise UsageError(f"{option} belongs to --sweep", hint=f"rankdeck runs --sweep NAME {option}")
    from engine.commands.history import show_history

    show_history(words, key or "launched", **wanted)


@click.command()
@RUN
@click.argument("text", required=False)
@click.option("--star/--no-star", default=None, help="Mark the run; gc, and clean without RUN, do not remove it.")
def note(run: str, text: str | None, *, star: bool | None) -> None:
    """Write a note about a run, which `runs` shows, or print the one that it has. An empty TEXT removes it."""
    from engine.commands.history import note_run

    note_run(find_run(run), text, star)


@click.command()
@RUN
@YES
def takeover(run: str, *, yes: bool) -> None:
    """Let this host continue or remove a run of a host that is gone for ever, or that has another name now.

    A supervisor that runs on the other host answers through the shared folder, and keeps its run.
    """
    from engine.commands.takeover import take_over

    take_over(find_run(run), yes=yes)


@click.command()
@click.argument("runs", nargs=-1, type=RUN_NAME, required=True)
@click.option("--code", is_flag=True, help="Show how the uncommitted changes of the code differ instead.")
@SECRETS
@JSON
def compare(runs: tuple[str, ...], *, code: bool, show_secrets: bool, as_json: bool) -> None:
    """Show the results of RUNS side by side, and what differs: settings, plan, code, versions, environment.

    A single RUN is compared with the newest.
    """
    from engine.commands.compare import compare_runs

    chosen = [find_run(run) for run in (runs if len(runs) > 1 else (*runs, "-"))]
    if len({paths.run for paths in chosen}) < len(chosen):
        raise UsageError("a run can't be compared with itself", hint="rankdeck ps --all lists the others")
    compare_runs(chosen, code=code, show_secrets=show_secrets, as_json=as_json)


@click.command()
@RUN
@click.option(
    "--to",
    "kind",
    type=click.Choice(["csv", "jsonl", "html", "svg", "png", "tensorboard", "wandb", "mlflow"]),
    required=True,
    help="Format.",
)
@click.option("--output", "-o", metavar="PATH", help="File or folder, or - for standard output; project or experiment.")
@click.option("--metric", default="loss", show_default=True, metavar="NAME", help="For svg and png.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what ranks report until the run ends.")
@SECRETS
def export(run: str, *, kind: str, output: str | None, metric: str, follow: bool, show_secrets: bool) -> None:
    """Write a run for other programs: its curves, a chart, or an HTML report in one file.

    csv and jsonl have up to 256 points of each metric and rank, with the lowest and highest value of each point; with --follow also
    every value from then on. The report shows curves, plan, versions, failure and events, and loads nothing. png, tensorboard,
    wandb and mlflow need their own packages.
    """
    from engine.commands.export import export_run

    export_run(find_run(run), kind, output, metric, follow=follow, show_secrets=show_secrets)


@click.command()
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="127.0.0.1:9417",
    show_default=True,
    help="A port of the loopback network, or the path of a socket that only you can connect to.",
)
def prometheus(*, listen: str) -> None:
    """Serve the metrics of your runs to a Prometheus server, until Ctrl-C.

    Every user of this machine can read a port. Needs the package prometheus-client: pip install 'rankdeck[prometheus]'.
    """
    from engine.commands.prometheus import parse_address, serve

    serve(parse_address(listen))
