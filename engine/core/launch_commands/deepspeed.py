"""The `deepspeed` command."""

from engine.core.launch_commands.draft import Draft, Word
from engine.core.launch_commands.options import read_options, take_option, take_program


def read_deepspeed(draft: Draft, words: list[Word]) -> None:
    """Reads what follows `deepspeed`. Raises UsageError if an option is unknown, or has no counterpart that would do the same."""
    given, rest = read_options(words, "deepspeed")
    for one in given:
        if one.option.means == "include":
            _include(draft, one.value)
        else:
            take_option(draft, one)
    if draft.hostfile and draft.slurm is None and (draft.nodes or draft.node_count):
        if draft.node_count:
            why = "rankdeck takes all nodes of a hostfile: to choose some, name them with --nodes"
            draft.leave_out(f"--num_nodes {draft.node_count}", why)
            draft.node_count = None
        else:
            draft.hostfile = ""
    if all(one.option.means != "no-local-rank" for one in given):
        draft.args.append("--local_rank={local_rank}")
    take_program(draft, given, rest, "deepspeed")


def _include(draft: Draft, value: Word) -> None:
    """`worker-0@worker-1:0,2`: nodes, and which of their GPUs."""
    chosen: set[str] = set()
    for part in value.text.split("@"):
        node, _, gpus = part.partition(":")
        count = len(set(gpus.split(","))) if gpus else 0
        draft.nodes.append(f"{node}:{count}" if count else node)
        chosen.add(gpus)
    if len(chosen) == 1 and (gpus := chosen.pop()):
        draft.set_env("CUDA_VISIBLE_DEVICES", gpus)
    elif any(chosen):
        why = "they differ between nodes; ranks use the first GPUs of each node"
        draft.leave_out(f"the GPUs of --include {value.text}", why)
