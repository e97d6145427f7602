"""`accelerate launch`. It hands its settings to the script in environment variables, which therefore become the profile's."""

from engine.core.launch_commands.draft import Draft, Word
from engine.core.launch_commands.options import Given, read_options, take_option, take_program


def read_accelerate(draft: Draft, words: list[Word]) -> None:
    """Reads what follows `accelerate launch`. Raises UsageError if an option is unknown."""
    given, rest = read_options(words, "accelerate")
    if draft.slurm is not None:
        draft.ranks = draft.total = None  # the tasks of srun are launchers
    for one in given:
        _take(draft, one)
    if all(one.option.means not in ("total", "config") for one in given):
        draft.leave_out(
            "accelerate's own configuration",
            "rankdeck does not read it. It starts one rank for each GPU or core; layout.ranks_per_node sets another number",
        )
    take_program(draft, given, rest, "accelerate launch")


def _take(draft: Draft, given: Given) -> None:
    match given.option.means:
        case "config":
            draft.leave_out(
                f"--config_file {given.value.text}",
                "rankdeck does not read it: write its settings as options of accelerate launch, and import that command",
            )
        case "gpus":
            if given.value.text != "all":
                draft.set_env(given.option.sets, given.value.text)
        case "cpu":
            draft.set_env("ACCELERATE_USE_CPU", "true")
            draft.backend = "gloo"
        case _:
            take_option(draft, given)
