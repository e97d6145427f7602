"""`rankdeck takeover`: lets this host continue or remove a run whose own host is gone for ever, or has another name now."""

import time

import click

from engine.commands.output import confirm
from engine.core.errors import SupervisorElsewhereError, UsageError
from engine.runs.paths import RunPaths
from engine.runs.record import host_elsewhere, read_whereabouts

ANSWER_TIME = 10.0  # seconds for a supervisor's next note: it looks every four, and shared file systems are slow


def take_over(paths: RunPaths, *, yes: bool) -> None:
    """Removes the note that a run belongs to another host. A supervisor that runs there writes it again; then the run stays there. Raises
    UsageError: the run belongs to this host, or there is nobody to ask and no `yes`; SupervisorElsewhereError: the supervisor on the
    other host runs."""
    host = host_elsewhere(paths)
    if host is None:
        raise UsageError(f"{paths.run} belongs to this host", hint=f"rankdeck attach {paths.run}")
    if not yes:
        confirm(
            f"{paths.run} belongs to {host}. Processes that it has there can't be seen or ended from here.\n"
            f"Is {host} gone for ever, or is it this host under an earlier name?",
            "nothing was changed",
        )
    paths.supervisor.unlink(missing_ok=True)
    deadline = time.monotonic() + ANSWER_TIME
    while time.monotonic() < deadline:
        if (where := read_whereabouts(paths)) is not None:
            fact = f"the supervisor of {paths.run} lives on {where.host}: it has answered"
            raise SupervisorElsewhereError(fact, hint=f"ssh -t {where.host} rankdeck attach {paths.run}")
        time.sleep(0.1)
    click.echo(
        f"{paths.run} belongs to this host now: rankdeck attach {paths.run} continues it, or stop and clean end it"
    )
