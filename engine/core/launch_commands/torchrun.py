"""torchrun, `python -m torch.distributed.run` and `python -m torch.distributed.launch`."""

import re

from engine.core.launch_commands.draft import DOLLAR, LITERAL, Draft, Word, whole_number
from engine.core.launch_commands.options import read_options, take_option, take_program

_OWN_WORD = re.compile(rf"[${DOLLAR}](?:[{{{chr(LITERAL['{'])}]local_rank\}}|local_rank\b)")


def read_torchrun(draft: Draft, words: list[Word], *, passes_local_rank: bool = False) -> None:
    """Reads what follows `torchrun`. `passes_local_rank`: whether the script gets `--local-rank`, as from `torch.distributed.launch`
    without `--use-env`. Raises UsageError: an option is unknown, or has no counterpart that would do the same."""
    given, rest = read_options(words, "torchrun")
    draft.ranks = 1
    for one in given:
        value = one.value
        match one.option.means:
            case "nodes":
                least, _, most = value.text.rpartition(":")
                draft.node_count = whole_number(Word(most, value.place), "the number of nodes")
                if least and least != most:
                    why = f"the number of nodes of a run does not change: it starts on {most}"
                    draft.leave_out(f"--nnodes {value.text}", why)
            case "ranks" if value.text in ("auto", "gpu", "cpu"):
                draft.ranks = None
                draft.backend = "gloo" if value.text == "cpu" else draft.backend
            case _:
                take_option(draft, one)
    if passes_local_rank and all(one.option.means != "use-env" for one in given):
        draft.args.append("--local-rank={local_rank}")
    # torchrun itself replaces this word in every argument.
    marked = [word._replace(text=_OWN_WORD.sub("\0", word.text)) for word in rest]
    take_program(draft, given, marked, "torchrun")
    draft.args = [arg.replace("\0", "{local_rank}") for arg in draft.args]
