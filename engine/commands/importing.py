"""`rankdeck import`: a command of another launcher becomes a profile."""

import os.path
import shlex
from typing import Any

import click

from engine.commands.arguments import SET
from engine.commands.output import print_line
from engine.commands.program import PROGRAM_WORDS, save_new
from engine.gate import CLOSED
from engine.planning.profiles import to_toml


class _Import(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options may also follow the name of a batch file, or a quoted command."""
        own = {name for one in self.get_params(ctx) for name in one.opts}
        given: Any = self.make_parser(ctx).parse_args([*args])[0].get("command")
        words: tuple[str, ...] = given if isinstance(given, tuple) else ()  # click has a value of its own for none
        is_whole = len(words) > 1 and (os.path.isfile(words[0]) or len(words[0].split()) > 1)
        if is_whole and words[1].partition("=")[0] in own and "--" not in args:
            args = [*args[: -len(words)], *words[1:], words[0]]
        return super().parse_args(ctx, args)


@click.command("import", cls=_Import, context_settings=PROGRAM_WORDS)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--name", metavar="NAME", help="Of the profile; default: from the job or the script.")
@click.option("--nodes", metavar="NODES", help="Nodes, such as gpu[01-04], instead of those of the command.")
@click.option("--print", "only_print", is_flag=True, help="Print the profile; save nothing.")
@SET
def import_(command: tuple[str, ...], *, only_print: bool, **wanted: Any) -> None:
    """Save a profile that does what COMMAND does. Nothing is started.

    COMMAND is one of torchrun, python -m torch.distributed.run or launch, accelerate launch, deepspeed, mpirun or srun, best in
    quotes, or the name of an sbatch file. It is only read: no shell runs it. Parts that no profile can hold are printed.
    """
    from engine.core.launch_commands.draft import left_out
    from engine.planning.imports import import_command  # it knows six launchers; other commands need none

    imported = import_command(command, **wanted)
    for line in left_out(imported.notes):
        print_line(line, err=only_print)
    if only_print:
        for line in to_toml(imported.profile).splitlines():
            print_line(line)
        return
    print_line(f"wrote {save_new(imported.profile, imported.places, CLOSED)}")
    print_line(f"next: rankdeck launch {shlex.quote(imported.profile.name)}")
