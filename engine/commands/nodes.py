"""`rankdeck nodes`: the partitions of Slurm, and how much of them is free."""

import click

from engine.commands.arguments import JSON
from engine.commands.output import print_json, print_table
from engine.core.plan.batch.slurm import partition_rows
from engine.core.terminal_text import visible
from engine.planning.batch import slurm


@click.command()
@JSON
def nodes(*, as_json: bool) -> None:
    """Show the partitions of Slurm, with the nodes, GPUs and CPUs that are free.

    A job that fits into what is free usually starts soon.
    """
    found = slurm.partitions()
    if as_json:
        print_json(found)
    else:
        print_table([tuple(map(visible, row)) for row in partition_rows(found)])
