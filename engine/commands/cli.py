"""The `rankdeck` command line: the app, and exit statuses. `MODULES` says where the other commands are."""

from __future__ import annotations

import gc
import io
import os
import resource
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from engine import __version__
from engine.commands.arguments import PROFILE_NAME, RUN
from engine.commands.output import complain
from engine.core.errors import CheckError, RankdeckError, UsageError
from engine.planning.profiles import find_profile, list_profiles
from engine.runs.listing import find_run
from engine.runs.queue.file import wake_starter
from engine.runs.settings import read_settings

if TYPE_CHECKING:
    from engine.client.protocols import EngineClient

_COMMANDS = {
    "config": "config",
    "importing": "import",
    "launching": "launch",
    "queue": "queue",
    "profiles": "backends bench check env metrics nodes plan profiles",
    "program": "new run",
    "recipes": "recipes",
    "sweep": "sweep",
    "runs": "clean compare diagnose export gc kill logs note prometheus ps restart runs stacks status stop takeover wait",
}
MODULES = {name: module for module, names in _COMMANDS.items() for name in names.split()}
"""The modules of commands, except those below."""

READERS = frozenset("clean compare export gc logs metrics profiles ps recipes runs status".split())
"""Commands that start no process. A damaged file of a run must not make them take the memory of a login node."""

MOST_MEMORY = 4 << 30  # bytes of memory that such a command may take: many times what it needs for the largest runs

EPILOG = """\b
Start here:
  rankdeck                        open the app: profiles, plans and runs on one screen
  rankdeck launch quickstart      train a small GPT on four CPU ranks for a minute
  rankdeck launch quickstart --detach, then: rankdeck attach -

RUN is the id of a run, a unique prefix of one, or - for the newest run.
"""


class Commands(click.Group):
    """Commands whose modules are imported when they are used: a short command would spend most of its time on those of others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted({*MODULES, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; None: there is none."""
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        names = vars(import_module(f"engine.commands.{MODULES[cmd_name]}")).values()
        return next(one for one in names if isinstance(one, click.Command) and one.name == cmd_name)


@click.group(
    cls=Commands, invoke_without_command=True, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
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
@click.option("--profile", "profile", type=PROFILE_NAME, help="Open the app with this profile selected.")
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
        ctx.exit(open_app(ctx.obj, open_profile=profile))


def open_app(
    look: dict[str, bool],
    *,
    open_run: str | None = None,
    open_profile: str | None = None,
    browser: tuple[int, int] | None = None,
    engine: EngineClient | None = None,
) -> int:
    """Shows the app and returns the exit status. `engine`: None: the engine of this machine."""
    if browser is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the app needs a terminal", hint="rankdeck --help lists the commands that need none")
    settings = read_settings()
    gc.disable()  # until the first frame: garbage collection takes a tenth of the time to import and set up the app
    from engine.client.engine import LocalEngine, ReadOnlyEngine
    from tui.start import run

    if not look["read_only"]:
        wake_starter(waits=False)
    engine = engine or (ReadOnlyEngine() if look["read_only"] else LocalEngine())
    return run(engine, settings, open_run=open_run, open_profile=open_profile, browser=browser, **look)


@cli.command()
@RUN
@click.pass_context
def attach(ctx: click.Context, run: str) -> None:
    """Open a run in the app. Without a terminal: print the output of its ranks."""
    found = find_run(run)
    if sys.stdin.isatty() and sys.stdout.isatty():
        ctx.exit(open_app(ctx.obj, open_run=found.run))
    import asyncio

    from engine.client.run import LocalRun
    from engine.commands.follow import watch

    ctx.exit(asyncio.run(watch(LocalRun(found), owner=False)))


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
        hint = "pip install 'rankdeck[serve]'"
        raise CheckError(f"serve needs the package textual-serve: {error}", hint=hint) from None
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
    ctx.exit(open_app(ctx.obj, browser=(columns, lines)))


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
    # A standard stream that the caller has closed, as in `<&-`, is opened: else the next file to be opened would take its place.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - for the whole process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that is not UTF-8 shows "?" for characters it lacks
            stream.reconfigure(errors="replace")
    if READERS.intersection(sys.argv[1:2]):
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = MOST_MEMORY if hard == resource.RLIM_INFINITY else min(hard, MOST_MEMORY)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        result = cli.main(prog_name="rankdeck", standalone_mode=False)
        if not READERS.intersection(sys.argv[1:2]) and not {"--read-only", "--help"} & {*sys.argv}:
            wake_starter(waits=False)
        return result if isinstance(result, int) else 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except RankdeckError as error:
        complain(error)
        return error.exit_status
    except MemoryError:
        complain(RankdeckError("there is too little memory", hint="rankdeck runs shows which run can't be read"))
        return RankdeckError.exit_status
    except OSError as error:  # such as a full disk or a removed folder: a traceback would not help
        told = RankdeckError(str(error))
        try:
            os.getcwd()
        except FileNotFoundError:
            told = RankdeckError("the current folder was removed", hint="change to another one: cd")
        complain(told)
        return told.exit_status
