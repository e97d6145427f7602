"""`rankdeck queue`: runs that wait for others, for cores, GPUs or nodes."""

from collections.abc import Callable, Sequence
from typing import Any

import click
from msgspec.structs import replace

from engine.commands.arguments import JSON
from engine.commands.output import confirm, print_json, print_table
from engine.core.errors import UsageError
from engine.core.sweeps.queue import Entry, Queue
from engine.core.words import count
from engine.runs.queue.file import change_queue, read_queue, wake_starter

ENTRIES = click.argument("words", metavar="ENTRY|SWEEP...", nargs=-1, required=True)


@click.group(invoke_without_command=True)
@JSON
@click.pass_context
def queue(ctx: click.Context, *, as_json: bool) -> None:
    """List the runs that wait, in their order, and what each waits for.

    The end of a run starts the next; if none is active, the next command of rankdeck does, unless it only reads.
    """
    if ctx.invoked_subcommand is not None:
        return
    from engine.client.sweeps.starter import looks  # imports most of the core

    found = read_queue()
    why = looks(found)
    reasons = {one.number: one.reason or (why[one.number].reason if one.number in why else "") for one in found.entries}
    if as_json:
        print_json([_data(one, reasons[one.number]) for one in found.entries])
    elif not found.entries:
        click.echo("nothing waits; rankdeck launch PROFILE --after RUN puts a run into the queue")
    else:
        rows = [("ENTRY", "PROFILE", "SWEEP", "VALUES", "STATE", "")]
        for one in found.entries:
            values = one.swept.words if one.swept is not None else ""
            rows.append((str(one.number), one.name, one.sweep, values, one.state, one.run or reasons[one.number]))
        print_table(rows)


def _data(entry: Entry, reason: str) -> dict[str, Any]:
    own = {key: getattr(entry, key) for key in ("number", "name", "state", "after", "run", "swept", "parallel")}
    return own | {"reason": reason, "ranks": entry.needs.ranks}


@queue.command()
@ENTRIES
def hold(words: tuple[str, ...]) -> None:
    """Keep entries, or all of a sweep, from starting."""
    _change(words, lambda entry: replace(entry, state="held", reason=""))


@queue.command()
@ENTRIES
def release(words: tuple[str, ...]) -> None:
    """Let entries start again that are held, or whose start has failed."""
    _change(words, lambda entry: replace(entry, state="queued", reason="", tries=0))
    wake_starter(waits=True)


@queue.command()
@click.argument("entry")
@click.argument("position", type=click.IntRange(min=1))
def move(entry: str, position: int) -> None:
    """Move an entry to a POSITION; 1 is the first."""
    change_queue(lambda now: now.moved(_chosen(now, (entry,))[0].number, position))


@queue.command()
@ENTRIES
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def cancel(words: tuple[str, ...], *, yes: bool) -> None:
    """Remove entries, or all of a sweep, from the queue. Runs that have started go on; `rankdeck stop` ends them."""
    numbers = {one.number for one in _chosen(read_queue(), words)}
    if not yes:
        confirm(f"Remove {count(len(numbers), 'entry', 'entries')} from the queue?", "nothing was removed")

    def without(now: Queue) -> Queue:
        return now.without(*(one.number for one in _chosen(now, words) if one.number in numbers))

    change_queue(without)


def _change(words: Sequence[str], change: Callable[[Entry], Entry]) -> None:
    def changed(now: Queue) -> Queue:
        for one in _chosen(now, words):
            now = now.changed(change(one))
        return now

    change_queue(changed)


def _chosen(found: Queue, words: Sequence[str]) -> list[Entry]:
    """The entries that words name, by number or sweep. Raises UsageError: there is none, or it starts now."""
    chosen = []
    for word in words:
        own = [one for one in found.entries if word == str(one.number) or (one.sweep and word == one.sweep)]
        waiting = [one for one in own if one.state != "starting"]
        if not waiting:
            hint = f"rankdeck stop {own[0].run} ends it" if own else "rankdeck queue lists them"
            raise UsageError(f"entry {word!r} {'starts now' if own else 'is not in the queue'}", hint=hint)
        chosen += waiting
    return chosen
