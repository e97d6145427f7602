"""The `deepspeed` command (options of DeepSpeed 0.18)."""

from __future__ import annotations

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import Draft, Word, whole_number
from engine.core.launch_commands.options import (
    ADDRESS,
    BINDING,
    OUTPUT,
    SCHEDULER,
    Given,
    Table,
    flag,
    left_out,
    option,
    read_options,
)
from engine.core.launch_commands.torchrun import read_program

DEEPSPEED = Table(
    "deepspeed",
    (
        option("--num-gpus --num-accelerators", "ranks"),
        option("--num-nodes", "nodes"),
        option("-H --hostfile", "hostfile"),
        option("-i --include", "include"),
        option("-e --exclude", "exclude"),
        flag("--module", "module"),
        flag("--no-python", "no-python"),
        flag("--no-local-rank", "no-local-rank"),
        *left_out(ADDRESS, "--master-port --master-addr --node-rank"),
        flag("--no-ssh"),
        flag("--no-ssh-check"),
        flag("--force-multi"),
        flag("--save-pid"),
        option("--launcher", why="rankdeck starts ranks itself"),
        option("--launcher-args", why="set layout.ssh_options"),
        option("--ssh-port", "ssh-port"),
        option("--enable-each-rank-log", why=OUTPUT),
        *left_out(SCHEDULER, "--comment --account"),
        flag("--bind-cores-to-rank", why=BINDING),
        option("--bind-core-list", why=BINDING),
        flag("--elastic-training", why="the number of nodes of a run does not change"),
        *left_out("the number of nodes of a run does not change", "--min-elastic-nodes --max-elastic-nodes"),
        option("--autotuning", why="rankdeck has no autotuner: to tune, run deepspeed itself"),
    ),
    abbreviates=True,
)


def read_deepspeed(draft: Draft, words: list[Word]) -> None:
    """Reads what follows `deepspeed`. Raises UsageError if an option is unknown, or has no counterpart that would do the same."""
    given, rest = read_options(words, DEEPSPEED)
    keys = {one.option.key for one in given}
    for one in given:
        _take(draft, one)
    if "no-python" in keys:
        raise UsageError(
            "--no_python: the program is not a Python script",
            hint="rankdeck starts Python scripts; import the command that the program runs",
        )
    if draft.hostfile and (draft.nodes or draft.node_count):
        if draft.node_count:
            draft.leave_out(
                f"--num_nodes {draft.node_count}",
                "rankdeck takes all nodes of a hostfile: to choose some, name them with --nodes",
            )
            draft.node_count = None
        else:
            draft.hostfile = ""
    if "no-local-rank" not in keys:
        draft.args.append("--local_rank={local_rank}")
    read_program(draft, rest, "deepspeed", is_module="module" in keys)


def _take(draft: Draft, given: Given) -> None:
    value = given.values[0] if given.values else given.word
    match given.option.key:
        case "ranks":
            draft.ranks = whole_number(value, "the number of ranks")
        case "nodes":
            draft.node_count = whole_number(value, "the number of nodes")
        case "hostfile":
            draft.hostfile = value.text
        case "include":
            _include(draft, value)
        case "exclude":
            raise UsageError(
                f"{value.place}: --exclude depends on a hostfile, which is not read",
                hint="leave it out, and name the nodes that remain: --nodes gpu01:4,gpu02:4",
            )
        case "ssh-port":
            draft.leave_out(given.word.text, f'set layout.ssh_options = ["-p", "{value.text}"]')
        case _:
            draft.leave_out(given.word.text.partition("=")[0], given.option.why)


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
        draft.leave_out(
            f"the GPUs of --include {value.text}", "they differ between nodes; ranks use the first GPUs of each node"
        )
