"""The lines of the form, and the choices in them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from engine.core.arguments.argument import BOOL, PRESET, Argument, RecipeInfo
from engine.core.catalogue import BackendInfo
from engine.core.tables import read_table

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


class _Line(NamedTuple):
    """A row of `form_lines.tsv`. `flags`: `group` and `number`. `choices`: `value: meaning`, separated by bars."""

    id: str
    label: str
    placeholder: str
    path: Literal["", "file", "folder", "script"]
    flags: str
    help: str
    choices: str = ""

    def field(self) -> Field:
        pairs = (choice.partition(": ") for choice in filter(None, self.choices.split(" | ")))
        return Field(
            id=self.id, label=self.label, help=self.help, placeholder=self.placeholder, path=self.path,
            choices=tuple((value, meaning) for value, _, meaning in pairs),
            begins_group="group" in self.flags, is_number="number" in self.flags,
        )  # fmt: skip


_LINES = {line.id: line.field() for line in read_table("tui.data", "form_lines", _Line)}
_OF_PROGRAMS = (SCRIPT, "recipe.module", "recipe.args")

JOB_LINES = {
    system: tuple(field for id, field in _LINES.items() if id.startswith(f"layout.{system}."))
    for system in ("slurm", "pbs")
}  # the lines of a job that a profile submits, by its batch system


def fields(values: Values, recipes: Sequence[RecipeInfo], backends: Sequence[BackendInfo]) -> list[Field]:
    """The lines of the form, top to bottom. Choices in some of them decide which others there are."""
    programs = ((OWN_SCRIPT, "a Python script of yours"), (OWN_MODULE, "a Python module, as python -m does"))
    offered = {
        BACKEND: tuple((backend.name, backend.summary) for backend in backends),
        RECIPE: (*programs, *((recipe.name, recipe.summary) for recipe in own_script(recipes, ()))),
    }
    of_jobs = {field.id for lines in JOB_LINES.values() for field in lines}
    found: list[Field] = []
    for id, field in _LINES.items():
        if id == "layout.nodes" and (system := batch_system(values)):
            found += JOB_LINES[system]
        elif id not in of_jobs and id not in _OF_PROGRAMS:
            found.append(replace(field, choices=offered[id]) if id in offered else field)
        if id == RECIPE:
            found += _program_fields(values, recipes)
    return found


def batch_system(values: Values) -> str | None:
    """The system whose job the form describes; None: it names nodes."""
    return next((name for name, (nodes, *_) in JOB_LINES.items() if nodes.id in values), None)


def _program_fields(values: Values, recipes: Sequence[RecipeInfo]) -> list[Field]:
    """The lines for the program: a script, a module or the recipe's own arguments, then free arguments."""
    kind = values.get("recipe.kind", "")
    more = _LINES["recipe.args"]
    if kind == OWN_SCRIPT:
        return [_LINES[SCRIPT], *(_argument_field(argument, (), "") for argument in declared_by(kind, recipes)), more]
    if kind == OWN_MODULE:
        return [_LINES["recipe.module"], more]
    preset = values.get(f"{ARGUMENT}{PRESET}", "")
    declared = [_argument_field(one, declared_by(kind, recipes), preset) for one in declared_by(kind, recipes)]
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
