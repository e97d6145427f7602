"""The command line and the environment of one rank of a plan."""

import re
from itertools import groupby

import msgspec

from engine.core.plan.layout import Place
from engine.core.plan.plan import LaunchPlan

TRACES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables with the path of torch's flight recorder. torch 2.8 and newer read the first, older versions the second."""

LAUNCHER_NAMES = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT "
    "TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE"
).split()
"""Variables that a launcher sets for its ranks."""

SEARCH_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH")  # variables to which an agent adds folders of its own, for all ranks


class AttemptPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of one rank's files in an attempt, on its node. `traces`: prefix of torch's flight recorder files; torch adds the rank."""

    library: str
    error: str
    metrics: str
    stacks: str
    handover: str
    traces: str
    checkpoints: str


def recipe_file(name: str) -> str:
    """The name of a recipe's script: `linear_hooks.py` for `linear-hooks`."""
    return f"{name.replace('-', '_')}.py"


def differs_between_ranks(plan: LaunchPlan) -> bool:
    """Whether the command lines of ranks differ: by their numbers, or by the run's folder, which nodes may have elsewhere."""
    return bool(plan.rank.wrap) or any(names_rank(argument) for argument in plan.program.args)


def rank_argv(plan: LaunchPlan, library: str, place: Place | None = None, folder: str = "") -> tuple[str, ...]:
    """The command line of a rank. `library`: the folder on the node that holds the `rankdeck` package; a recipe is a file in there.
    `place`: None leaves the words `{rank}`, `{local_rank}` and `{world_size}` as they are. `folder`: the run's on the node, for `{run}` in
    `rank.wrap`; empty: `{run}` is left as it is."""
    program = plan.program
    match program.kind:
        case "recipe":
            target: tuple[str, ...] = (f"{library}/rankdeck/recipes/{recipe_file(program.target)}",)
        case "script":
            target = (program.target,)
        case "module":
            target = ("-m", program.target)
    args, wrap = program.args, plan.rank.wrap
    if place is not None:
        args = tuple(with_place(argument, place, plan.world_size) for argument in args)
        wrap = tuple(with_place(word, place, plan.world_size) for word in wrap)
    if folder:
        wrap = tuple(word.replace("{run}", folder) for word in wrap)
    python = (plan.python, "-u") if program.interpreter is None else program.interpreter
    return (*plan.launch.wrap, *wrap, *python, *target, *args)


def task_variables(plan: LaunchPlan, place: Place) -> dict[str, str]:
    """The variables that srun sets for a task with the place of a rank. Those of the job stay as they are."""
    counts = [(count, len(list(same))) for count, same in groupby(len(node.ranks) for node in plan.nodes)]
    per_node = ",".join(f"{count}(x{nodes})" if nodes > 1 else str(count) for count, nodes in counts)
    ranks, nodes, names = str(plan.world_size), str(len(plan.nodes)), ",".join(node.name for node in plan.nodes)
    return {
        "SLURM_PROCID": str(place.rank),
        "SLURM_LOCALID": str(place.local_rank),
        "SLURM_NODEID": str(place.group_rank),
        "SLURM_GTIDS": ",".join(map(str, plan.nodes[place.group_rank].ranks)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), ranks),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_STEP_NODELIST"), names),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), per_node),
    }


def rank_environment(
    plan: LaunchPlan,
    place: Place,
    *,
    run: str,
    attempt: int,
    address: str,
    port: int,
    paths: AttemptPaths,
    generation: int = 0,
    store_key: str = "",
    in_slurm: bool = False,
) -> dict[str, str]:
    """The environment of a rank, in addition to its node's.

    Names and values follow torchrun (torch 2.13, `LocalElasticAgent._start_workers`), so that scripts for torchrun run unchanged.
    `RANKDECK_*` are rankdeck's own, and the only ones with `launch.environment = "plain"`.

    Args:
        attempt: counted from 0, torchrun's restart count.
        address: where other nodes reach the node that hosts this attempt's store.
        port: the store's, which runs outside the ranks.
        paths: files of this rank.
        generation: the process group that the rank starts for; above 0 if it replaces a dead rank.
        in_slurm: whether the node's environment is that of a job of Slurm.
        store_key: secret with which rankdeck signs what it puts into the store; empty: nothing is signed.
    """
    traces = dict.fromkeys(TRACES, paths.traces) if "nccl" in plan.backend.name else {}
    own = {name: value for name, value in plan.env.items() if name not in SEARCH_PATHS}
    launcher = {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(place.group_rank),
        "GROUP_WORLD_SIZE": str(len(plan.nodes)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(plan.world_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.launch.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": paths.error,
    }
    return {
        **traces,
        **(task_variables(plan, place) if in_slurm and plan.backend.mpi is None else {}),
        **own,
        **(launcher if plan.launch.environment == "torchrun" else {}),
        "RANKDECK_RUN": run,
        "RANKDECK_GENERATION": str(generation),
        "RANKDECK_BACKEND": plan.backend.name,
        "RANKDECK_TIMEOUT": f"{plan.timeout:g}",
        "RANKDECK_METRICS": paths.metrics,
        "RANKDECK_STACKS": paths.stacks,
        "RANKDECK_HANDOVER": paths.handover,
        "RANKDECK_CHECKPOINTS": paths.checkpoints,
        **({"RANKDECK_REJOIN": plan.backend.rejoins_over} if plan.backend.rejoins_over else {}),
        **({"RANKDECK_STORE_KEY": store_key} if store_key else {}),
    }


def unset_variables(plan: LaunchPlan) -> tuple[str, ...]:
    """Variables that no rank may have, wherever they come from, except from the profile."""
    return tuple(name for name in LAUNCHER_NAMES if plan.launch.environment == "plain" and name not in plan.env)


_WORDS = re.compile(r"\{\{(?P<doubled>rank|local_rank|world_size)\}\}|\{(?P<name>rank|local_rank|world_size)\}")

_ONE = re.compile(r"\{(rank|local_rank|world_size|env\.\w+)\}")
_ENVIRONMENT = re.compile(r"\{env\.\w+\}")


def with_place(argument: str, place: Place, world_size: int) -> str:
    """An argument with the numbers of a rank in place of the words `{rank}`, `{local_rank}` and `{world_size}`. Doubled braces, `{{rank}}`,
    stand for the word itself. All other braces, such as those of JSON, are not changed; an agent replaces `{env.NAME}`."""
    numbers = {"rank": place.rank, "local_rank": place.local_rank, "world_size": world_size}
    return _WORDS.sub(lambda found: str(numbers[found["name"]]) if found["name"] else found[0][1:-1], argument)


def names_rank(argument: str) -> bool:
    """Whether an argument may differ between ranks: by its numbers, or by the environment of its node."""
    return bool(_WORDS.search(argument) or _ENVIRONMENT.search(argument))


def literal(argument: str) -> str:
    """The text to write so that every rank gets this argument."""
    return _ONE.sub(r"{{\1}}", argument)
