"""`accelerate launch` (options of accelerate 1.15).

It hands its settings to the script in environment variables, which therefore become the profile's.
"""

from __future__ import annotations

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import Draft, Word, whole_number
from engine.core.launch_commands.options import (
    ADDRESS,
    OUTPUT,
    TIMING,
    Given,
    Option,
    Table,
    flag,
    left_out,
    option,
    read_options,
)
from engine.core.launch_commands.torchrun import read_program

_VARIABLES = {
    "--mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "--dynamo-backend": "ACCELERATE_DYNAMO_BACKEND",
    "--dynamo-mode": "ACCELERATE_DYNAMO_MODE",
    "--num-cpu-threads-per-process": "OMP_NUM_THREADS",
    "--gpu-ids": "CUDA_VISIBLE_DEVICES",
    "--fsdp-version": "FSDP_VERSION",
    "--fsdp-offload-params": "FSDP_OFFLOAD_PARAMS",
    "--fsdp-min-num-params": "FSDP_MIN_NUM_PARAMS",
    "--fsdp-sharding-strategy": "FSDP_SHARDING_STRATEGY",
    "--fsdp-reshard-after-forward": "FSDP_RESHARD_AFTER_FORWARD",
    "--fsdp-auto-wrap-policy": "FSDP_AUTO_WRAP_POLICY",
    "--fsdp-transformer-layer-cls-to-wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "--fsdp-backward-prefetch": "FSDP_BACKWARD_PREFETCH",
    "--fsdp-state-dict-type": "FSDP_STATE_DICT_TYPE",
    "--fsdp-forward-prefetch": "FSDP_FORWARD_PREFETCH",
    "--fsdp-use-orig-params": "FSDP_USE_ORIG_PARAMS",
    "--fsdp-cpu-ram-efficient-loading": "FSDP_CPU_RAM_EFFICIENT_LOADING",
    "--fsdp-sync-module-states": "FSDP_SYNC_MODULE_STATES",
    "--fsdp-activation-checkpointing": "FSDP_ACTIVATION_CHECKPOINTING",
    "--fsdp-activation-checkpointing-offload": "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD",
}
"""Variables that take an option's value as it is."""

_SWITCHES = {
    "--cpu": ("ACCELERATE_USE_CPU", "true"),
    "--debug": ("ACCELERATE_DEBUG_MODE", "true"),
    "--use-fsdp": ("ACCELERATE_USE_FSDP", "true"),
    "--dynamo-use-fullgraph": ("ACCELERATE_DYNAMO_USE_FULLGRAPH", "True"),
    "--dynamo-use-dynamic": ("ACCELERATE_DYNAMO_USE_DYNAMIC", "True"),
    "--dynamo-use-regional-compilation": ("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "True"),
    "--enable-cpu-affinity": ("ACCELERATE_CPU_AFFINITY", "1"),
}

_ITSELF = "accelerate gives it to the script in variables of its own: set them in [env]"


def _itself(names: str, *, takes: int = 1) -> tuple[Option, ...]:
    return left_out(_ITSELF, names, takes=takes)


ACCELERATE = Table(
    "accelerate launch",
    (
        option("--num-processes", "total"),
        option("--num-machines", "nodes"),
        option("--max-restarts", "restarts"),
        flag("-m --module", "module"),
        flag("--no-python", "no-python"),
        flag("--multi-gpu"),
        flag("--quiet -q"),
        flag("--same-network"),
        option("--config-file", "config"),
        *(option(name, name) for name in _VARIABLES),
        *(flag(name, name) for name in _SWITCHES),
        *left_out(ADDRESS, "--machine-rank --main-process-ip --main-process-port --rdzv-backend --rdzv-conf"),
        *left_out(OUTPUT, "-t --tee --log-dir"),
        *left_out(TIMING, "--role --monitor-interval"),
        option("--mpirun-hostfile", "hostfile"),
        option("--deepspeed-hostfile", "hostfile"),
        *_itself("--use-deepspeed --use-megatron-lm --use-parallelism-config --fp8-use-autocast-during-eval", takes=0),
        *_itself(
            "--deepspeed-config-file --zero-stage --offload-optimizer-device --offload-param-device --offload-optimizer-nvme-path "
            "--offload-param-nvme-path --gradient-accumulation-steps --gradient-clipping --zero3-init-flag --zero3-save-16bit-model "
            "--deepspeed-exclusion-filter --deepspeed-inclusion-filter --deepspeed-multinode-launcher --deepspeed-moe-layer-cls-names "
            "--fp8-backend --fp8-margin --fp8-interval --fp8-format --fp8-amax-history-len --fp8-amax-compute-algo "
            "--fp8-override-linear-precision --fp8-opt-level --fp8-enable-fsdp-float8-all-gather --fp8-pad-inner-dim"
        ),
    ),
    abbreviates=True,
)
_FAMILIES = ("--megatron-lm-", "--parallelism-config-")
"""Beginnings of options that all have a value and no counterpart."""


def read_accelerate(draft: Draft, words: list[Word]) -> None:
    """Reads what follows `accelerate launch`. Raises UsageError if an option is unknown."""
    families = {word.text.partition("=")[0] for word in words if word.text.replace("_", "-").startswith(_FAMILIES)}
    table = ACCELERATE._replace(options=(*ACCELERATE.options, *_itself(" ".join(families))))
    given, rest = read_options(words, table)
    keys = {one.option.key for one in given}
    if draft.slurm is not None:
        draft.ranks = draft.total = None  # the tasks of srun are launchers
    for one in given:
        _take(draft, one)
    if "no-python" in keys:
        raise UsageError(
            "--no-python: the program is not a Python script",
            hint="rankdeck starts Python scripts; import the command that the program runs",
        )
    if not keys & {"total", "config"}:
        draft.leave_out(
            "accelerate's own configuration",
            "rankdeck does not read it. It starts one rank for each GPU or core; layout.ranks_per_node sets another number",
        )
    read_program(draft, rest, "accelerate launch", is_module="module" in keys)


def _take(draft: Draft, given: Given) -> None:
    value = given.values[0] if given.values else given.word
    key, spelled = given.option.key, given.word.text.partition("=")[0]
    match key:
        case "total":
            draft.total = whole_number(value, "the number of ranks")
        case "nodes":
            draft.node_count = whole_number(value, "the number of nodes")
        case "restarts":
            draft.restarts = 0 if value.text == "0" else whole_number(value, "the number of restarts")
        case "hostfile":
            draft.hostfile = value.text
        case "config":
            draft.leave_out(
                f"--config_file {value.text}",
                "rankdeck does not read it: write its settings as options of accelerate launch, and import that command",
            )
        case _ if key in _VARIABLES:
            if (key, value.text) != ("--gpu-ids", "all"):
                draft.set_env(_VARIABLES[key], value.text)
        case _ if key in _SWITCHES:
            draft.set_env(*_SWITCHES[key])
            draft.backend = "gloo" if key == "--cpu" else draft.backend
        case _:
            draft.leave_out(spelled, given.option.why)
