"""`accelerate launch`. It hands its settings to the script in environment variables, which therefore become the profile's."""

from engine.core.launch_commands.draft import Draft, Word
from engine.core.launch_commands.options import read_options, take_option, take_program


def read_accelerate(draft: Draft, words: list[Word]) -> None:
    """Reads what follows `accelerate launch`. Raises UsageError if an option is unknown."""
    given, rest = read_options(words, "accelerate")
    if draft.slurm is not None:
        draft.ranks = draft.total = None  # the tasks of srun are launchers
    for one in given:
        match one.option.means:
            case "config":
                why = "rankdeck does not read it: write its settings as options of accelerate launch, and import that command"
                draft.leave_out(f"--config_file {one.value.text}", why)
            case "gpus":
                if one.value.text != "all":
                    draft.set_env(one.option.sets, one.value.text)
            case "cpu":
                draft.set_env("ACCELERATE_USE_CPU", "true")
                draft.backend = "gloo"
            case _:
                take_option(draft, one)
    if all(one.option.means not in ("total", "config") for one in given):
        why = "rankdeck does not read it. It starts one rank for each GPU or core; layout.ranks_per_node sets another number"
        draft.leave_out("accelerate's own configuration", why)
    take_program(draft, given, rest, "accelerate launch")
