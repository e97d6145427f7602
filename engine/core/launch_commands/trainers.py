"""Commands of trainers: `fabric run`, `lightning run`, `composer`, `tune run` and `colossalai run`."""

from engine.core.launch_commands.draft import Draft, Word, whole_number
from engine.core.launch_commands.options import read_options, take_option, take_program
from engine.core.launch_commands.torchrun import read_torchrun

_TUNE = "torchtune._cli.tune"


def read_fabric(draft: Draft, words: list[Word]) -> None:
    """Reads what follows `fabric run`, or `lightning run` of older versions. It hands its settings to the script in variables."""
    if words[:1] and words[0].text == "model":
        words = words[1:]
    given, rest = read_options(words, "fabric")
    draft.ranks = 1
    draft.env |= {"LT_CLI_USED": "1", "LT_DEVICES": "1", "LT_NUM_NODES": "1"}
    for one in given:
        value = one.value
        match one.option.means:
            case "devices":
                draft.env["LT_DEVICES"] = value.text
                if value.text == "-1":
                    draft.ranks = None
                elif "," in value.text:
                    draft.ranks = len([part for part in value.text.split(",") if part])
                elif value.text != "auto":  # which is one device
                    draft.ranks = whole_number(value, "the number of devices")
            case "accelerator":
                draft.env[one.option.sets] = value.text
                draft.backend = "gloo" if value.text == "cpu" else draft.backend
            case _:
                take_option(draft, one)
    draft.env["LT_NUM_NODES"] = str(draft.node_count or 1)
    take_program(draft, given, rest, "fabric run")


def read_composer(draft: Draft, words: list[Word]) -> None:
    """Reads what follows `composer`. Without a number it starts a rank on each GPU."""
    given, rest = read_options(words, "composer")
    for one in given:
        take_option(draft, one)
    if draft.total and draft.ranks:
        draft.node_count, draft.total = max(1, draft.total // draft.ranks), None
    take_program(draft, given, rest, "composer")


def read_tune(draft: Draft, words: list[Word]) -> None:
    """Reads what follows `tune run`. Each rank runs it without options of torchrun, so that it finds the recipe and its configuration."""
    read_torchrun(draft, words)
    draft.kind, draft.target, draft.args = "module", _TUNE, ["run", draft.target, *draft.args]


def read_colossalai(draft: Draft, words: list[Word]) -> None:
    """Reads what follows `colossalai run`. Without a number it starts a rank on each GPU."""
    given, rest = read_options(words, "colossalai")
    module = None
    for one in given:
        match one.option.means:
            case "module-name":
                module = one.value
            case "ranks" | "nodes" if one.value.text == "-1":
                pass
            case _:
                take_option(draft, one)
    if draft.nodes:
        draft.hostfile = ""
    if module is not None:
        draft.set_program("module", module, rest)
    else:
        take_program(draft, given, rest, "colossalai run")
