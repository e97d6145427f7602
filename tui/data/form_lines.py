"""The lines of the form, and the choices in them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.core.arguments.argument import BOOL, NO, PRESET, YES, Argument, RecipeInfo
from engine.core.catalogue import BackendInfo

Values = Mapping[str, str]  # the text in each line, by the line's id

OWN_SCRIPT = "script"
OWN_MODULE = "module"  # choices of `recipe.kind` besides the recipes
BACKEND = "backend.name"  # the id of the backend's line
RECIPE = "recipe.kind"  # the id of the recipe's line
SCRIPT = "recipe.script"  # the id of a script's line, which is there if ranks run a script

JOB_NODES, PARTITION = "layout.slurm.nodes", "layout.slurm.partition"
"""The ids of two lines of a job of Slurm. The lines of a job are there if the form has a value for its nodes."""

LABEL = 16  # cells of a label
ARGUMENT = "argument."  # prefix of the lines for a recipe's declared arguments

DECIDING = (RECIPE, f"{ARGUMENT}{PRESET}")  # ids of the lines that decide which other lines exist, or their content


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One line of the form. `choices`: the values with their meanings; empty: free text. `path`: the kind of path in it. `is_number`: the
    profile has a whole number there."""

    id: str
    label: str
    help: str
    placeholder: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    begins_group: bool = False
    path: Literal["", "file", "folder", "script"] = ""
    is_number: bool = False

    @property
    def key(self) -> str:
        """The last part of its id: its key in the table of a profile."""
        return self.id.rpartition(".")[2]


def fields(values: Values, recipes: Sequence[RecipeInfo], backends: Sequence[BackendInfo]) -> list[Field]:
    """The lines of the form, top to bottom. Choices in some of them decide which others there are."""
    return [
        Field(id="name", label="name", placeholder="my-run", help="The name of the profile and of its runs."),
        Field(id="description", label="description", help="One line for the list of profiles."),
        Field(id=BACKEND, label="backend", begins_group=True, help="How ranks communicate.",
              choices=tuple((backend.name, backend.summary) for backend in backends)),
        Field(id="backend.fallback", label="fallback", placeholder="none",
              help="Backends to use if it can't run or be set up, in order, separated by blanks: gloo"),
        *_place_fields(values),
        Field(id="layout.ranks_per_node", label="ranks per node", placeholder="auto",
              help="For nodes without a number of their own. auto: one for each GPU, else one for each core."),
        Field(id="layout.order", label="order", help="How ranks are numbered.",
              choices=(("block", "a node is filled before the next one"), ("cyclic", "one rank for each node in turn"))),
        Field(id="recipe.kind", label="recipe", begins_group=True, help="What every rank runs.",
              choices=(*((recipe.name, recipe.summary) for recipe in own_script(recipes, ())),
                       (OWN_SCRIPT, "a Python script of yours"), (OWN_MODULE, "a Python module, as python -m does"))),
        *_program_fields(values, recipes),
        Field(id="launch.python", label="python", placeholder="the one that rankdeck runs with", begins_group=True, path="file",
              help="The interpreter of the ranks; it needs torch."),
        Field(id="launch.workdir", label="folder", placeholder=".", path="folder",
              help="The folder that ranks start in; the path of a script is relative to it."),
        Field(id="launch.warm", label="warm start", help="How ranks start.",
              choices=((YES, "forked from a process that has imported torch once"),
                       (NO, "every rank imports torch by itself"))),
        Field(id="launch.preload", label="preload", placeholder="transformers",
              help="Modules that are imported once, like torch, before ranks are forked; auto: those that the script used in its last run."),
        Field(id="launch.on_failure", label="on failure", help="What happens when a rank fails.",
              choices=(("hold", "leave the others as they are, and wait for you"), ("stop", "end the run"),
                       ("restart", "dead ranks rejoin if the script supports it, else all ranks restart"))),
        Field(id="env", label="environment", placeholder="NAME=value", begins_group=True,
              help="Environment of every rank, quoted as in a shell. Secret values are hidden, and do not change."),
        Field(id="backend.env", label="backend env", placeholder="NAME=value",
              help="Environment that only this backend needs, quoted as in a shell."),
    ]  # fmt: skip


_BY_SITE = "as the site sets it"

JOB_LINES = {
    "slurm": (
        Field(id=JOB_NODES, label="nodes of the job", placeholder="1", begins_group=True, is_number=True,
              help="How many nodes the job requests; rankdeck submits it to Slurm."),
        Field(id=PARTITION, label="partition", placeholder=_BY_SITE, help="The partition of Slurm that the job goes to."),
        Field(id="layout.slurm.time", label="time limit", placeholder=_BY_SITE, help="When Slurm ends the job: 4:00:00"),
        Field(id="layout.slurm.gres", label="resources", placeholder="none", help="What each node must have: gpu:8"),
    ),
    "pbs": (
        Field(id="layout.pbs.nodes", label="nodes of the job", placeholder="1", begins_group=True, is_number=True,
              help="How many nodes the job requests; rankdeck submits it to PBS."),
        Field(id="layout.pbs.queue", label="queue", placeholder=_BY_SITE, help="The queue of PBS that the job goes to."),
        Field(id="layout.pbs.walltime", label="time limit", placeholder=_BY_SITE, help="When PBS ends the job: 4:00:00"),
        Field(id="layout.pbs.ncpus", label="CPUs of a node", placeholder="one for each rank", is_number=True,
              help="How many CPUs of each node the job requests."),
        Field(id="layout.pbs.ngpus", label="GPUs of a node", placeholder="0", is_number=True,
              help="How many GPUs of each node the job requests."),
    ),
}  # fmt: skip
"""The lines of a job that a profile submits, by its batch system."""


def batch_system(values: Values) -> str | None:
    """The system whose job the form describes; None: it names nodes."""
    return next((name for name, (nodes, *_) in JOB_LINES.items() if nodes.id in values), None)


def _place_fields(values: Values) -> Sequence[Field]:
    if system := batch_system(values):
        return JOB_LINES[system]
    return [
        Field(id="layout.nodes", label="nodes", placeholder="localhost", begins_group=True,
              help="Where ranks run, with a number of ranks or without: localhost:4")
    ]  # fmt: skip


def _program_fields(values: Values, recipes: Sequence[RecipeInfo]) -> list[Field]:
    """The lines for the program: a script, a module or the recipe's own arguments, then free arguments."""
    kind = values.get("recipe.kind", "")
    more = Field(
        id="recipe.args",
        label="arguments",
        help="Its command-line arguments, quoted as in a shell. {rank} becomes its number.",
    )
    if kind == OWN_SCRIPT:
        script = Field(id=SCRIPT, label="script", placeholder="train.py", path="script", help="A Python file.")
        return [script, *(_argument_field(argument, (), "") for argument in declared_by(kind, recipes)), more]
    if kind == OWN_MODULE:
        return [Field(id="recipe.module", label="module", placeholder="pkg.train", help="A module's name."), more]
    preset = values.get(f"{ARGUMENT}{PRESET}", "")
    declared = [
        _argument_field(argument, declared_by(kind, recipes), preset) for argument in declared_by(kind, recipes)
    ]
    return [*declared, Field(id="recipe.args", label="more arguments", help="Further arguments, quoted as in a shell.")]


def _argument_field(argument: Argument, others: Sequence[Argument], preset: str) -> Field:
    """The line of a declared argument. Its default depends on the preset."""
    unset = argument.presets.get(preset, argument.default)
    words = f"{unset} {argument.unit}".rstrip() if argument.type != "bool" else BOOL[bool(unset)]
    words = words or ("required" if argument.is_required else "")
    meanings: dict[str, str] = {}
    if argument.name == PRESET:
        meanings = {str(choice): _preset_words(str(choice), others) for choice in argument.choices}
    elif argument.type == "bool":
        meanings = {word: "" for is_on, word in BOOL.items() if is_on in argument.flags.values()}
    elif argument.choices and not argument.many:
        meanings = dict.fromkeys([*map(str, argument.choices), *filter(None, [argument.alone])], "")
    takes = f" ({argument.takes}{f'; {argument.unit}' if argument.unit else ''})" if not meanings else ""
    is_cut = len(argument.name) > LABEL
    return Field(
        id=f"{ARGUMENT}{argument.name}",
        label=f"{argument.name[: LABEL - 1]}…" if is_cut else argument.name,
        placeholder=words,
        choices=tuple(({"": words or "the defaults"} | meanings).items()) if meanings else (),
        help=f"{f'{argument.name}: ' if is_cut else ''}{argument.help}{takes}",
    )


def _preset_words(preset: str, arguments: Sequence[Argument]) -> str:
    return ", ".join(f"{one.name} {one.presets[preset]}" for one in arguments if preset in one.presets)


def own_script(recipes: Sequence[RecipeInfo], found: tuple[Argument, ...]) -> list[RecipeInfo]:
    """The recipes, and after them, if it declares arguments, the user's script as an entry of its own."""
    own = RecipeInfo(name=OWN_SCRIPT, summary="", arguments=found)
    return [*(recipe for recipe in recipes if recipe.name != OWN_SCRIPT), *([own] if found else [])]


def script_in(values: Values) -> tuple[str, str] | None:
    """Script and folder, if the form runs a user's script."""
    script = values.get("recipe.script", "").strip()
    if values.get(RECIPE) != OWN_SCRIPT or not script:
        return None
    return script, values.get("launch.workdir", "").strip() or "."


def declared_by(kind: str, recipes: Sequence[RecipeInfo]) -> tuple[Argument, ...]:
    """The arguments that a recipe, or the user's script, declares."""
    return next((recipe.accepted for recipe in recipes if recipe.name == kind), ())
