"""torchrun, `python -m torch.distributed.run` and `python -m torch.distributed.launch` (options of torch 2.13)."""

from __future__ import annotations

import re

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import Draft, Word, whole_number
from engine.core.launch_commands.options import (
    ADDRESS,
    BINDING,
    OUTPUT,
    TIMING,
    Given,
    Table,
    flag,
    left_out,
    option,
    read_options,
)

TORCHRUN = Table(
    "torchrun",
    (
        option("--nnodes", "nodes"),
        option("--nproc-per-node", "ranks"),
        option("--max-restarts", "restarts"),
        flag("-m --module", "module"),
        flag("--no-python", "no-python"),
        flag("--run-path"),
        flag("--standalone"),
        flag("--use-env", "use-env"),
        *left_out(
            ADDRESS,
            "--rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --node-rank --master-addr --master-port --local-addr",
        ),
        *left_out(TIMING, "--monitor-interval --start-method --event-log-handler --role --signals-to-handle"),
        option("--shutdown-timeout", why="set launch.stop_ladder"),
        *left_out(
            OUTPUT,
            "--log-dir --redirects --tee --local-ranks-filter --duplicate-stdout-filters --duplicate-stderr-filters --logs-specs",
        ),
        option("-r", why=OUTPUT),
        option("-t", why=OUTPUT),
        option("--numa-binding", why=BINDING),
        flag("--virtual-local-rank", why="set CUDA_VISIBLE_DEVICES in the script"),
    ),
    abbreviates=True,
)

_OWN_WORD = re.compile(r"\$(?:\{local_rank\}|local_rank\b)")


def read_torchrun(draft: Draft, words: list[Word], *, passes_local_rank: bool = False) -> None:
    """Reads what follows `torchrun`.

    Args:
        draft: takes what it says.
        words: after the launcher's name.
        passes_local_rank: whether the script gets `--local-rank`, as from `torch.distributed.launch` without `--use-env`.

    Raises:
        UsageError: an option is unknown, or has no counterpart that would do the same.
    """
    given, rest = read_options(words, TORCHRUN)
    keys = {one.option.key for one in given}
    draft.ranks = 1
    for one in given:
        _take(draft, one)
    if "no-python" in keys:
        raise UsageError(
            "--no-python: the program is not a Python script",
            hint="rankdeck starts Python scripts; import the command that the program runs",
        )
    if passes_local_rank and "use-env" not in keys:
        draft.args.append("--local-rank={local_rank}")
    # torchrun itself replaces this word in every argument.
    marked = [word._replace(text=_OWN_WORD.sub("\0", word.text)) for word in rest]
    read_program(draft, marked, "torchrun", is_module="module" in keys)
    draft.args = [arg.replace("\0", "{local_rank}") for arg in draft.args]


def _take(draft: Draft, given: Given) -> None:
    value = given.values[0] if given.values else given.word
    match given.option.key:
        case "nodes":
            least, _, most = value.text.rpartition(":")
            draft.node_count = whole_number(Word(most, value.place), "the number of nodes")
            if least and least != most:
                draft.leave_out(
                    f"--nnodes {value.text}", f"the number of nodes of a run does not change: it starts on {most}"
                )
        case "ranks":
            if value.text in ("auto", "gpu", "cpu"):
                draft.ranks = None
                draft.backend = "gloo" if value.text == "cpu" else draft.backend
            else:
                draft.ranks = whole_number(value, "the number of ranks")
        case "restarts":
            draft.restarts = 0 if value.text == "0" else whole_number(value, "the number of restarts")
        case _:
            draft.leave_out(given.word.text.partition("=")[0], given.option.why)


def read_program(draft: Draft, words: list[Word], launcher: str, *, is_module: bool = False) -> None:
    """Takes the program and its arguments. Raises UsageError if there is none."""
    if not words:
        raise UsageError(f"{launcher} is given no program", hint="write the script after its options")
    draft.set_program("module" if is_module else "script", words[0], words[1:])
