"""Reads a recipe's description, and checks command lines for it. Its script is not run, because it imports torch."""

import argparse
import ast
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from engine.core.arguments.argument import Argument, RecipeInfo

PARAMETERS = "Parameters"  # the class in a script that declares its arguments

LIMITS = {"REFUSED_BACKENDS": "refused", "RANKS": "ranks", "TORCH": "torch"}
"""Variables in a script that say on which backends it can't run, and why, how many ranks it takes, and the oldest torch that it needs."""

_ORDER = ("default", "help")  # positional arguments of `parameter`


def read_recipe(name: str, source: str) -> RecipeInfo:
    """The description of a recipe, from its script, whose `parameter(...)` calls contain literals only. Raises ValueError: it declares
    something in another way."""
    tree = ast.parse(source)
    summary, _, lesson = inspect.cleandoc(ast.get_docstring(tree) or "").partition("\n")
    found: dict[str, Any] = {"arguments": []}
    for node in tree.body:
        match node:
            case ast.ClassDef(name=declared) if declared == PARAMETERS:
                found["arguments"] = [_argument(one) for one in node.body if isinstance(one, ast.AnnAssign)]
            case ast.Assign(targets=[ast.Name(id=variable)], value=value) if variable in LIMITS:
                found[LIMITS[variable]] = ast.literal_eval(value)
    return msgspec.convert({"name": name, "summary": summary, "lesson": lesson.strip(), **found}, RecipeInfo)


def _argument(node: ast.AnnAssign) -> dict[str, Any]:
    match node:
        case ast.AnnAssign(
            target=ast.Name(id=name),
            annotation=ast.Name(id=kind),
            value=ast.Call(func=ast.Name(id="parameter"), args=args, keywords=keywords),
        ):
            given = dict(zip(_ORDER, args, strict=False)) | {word.arg or "": word.value for word in keywords}
            said = {key: ast.literal_eval(value) for key, value in given.items()}
            return {"name": name.replace("_", "-"), "type": kind, **said}
    raise ValueError(f"line {node.lineno} is not `name: type = parameter(default, help, ...)`")


class Problem(NamedTuple):
    """Why a script refuses its command line. `argument`: the one whose value is wrong; None: `word` is no argument."""

    argument: Argument | None
    reason: str
    word: str = ""


class _HelpAskedFor(Exception):
    """The script prints its help and does not look at the words after it."""


class _Help(argparse.Action):
    def __call__(self, *_: Any) -> None:
        raise _HelpAskedFor


def problem_with(recipe: RecipeInfo, words: Sequence[str]) -> Problem | None:
    """The problem with a command line, in the words of the script; None: it is valid."""
    try:
        _, rest = _parser(recipe).parse_known_args(words)
    except _HelpAskedFor:
        return None
    except argparse.ArgumentError as error:
        name = error.argument_name or ""
        flag = name.split("/")[0]
        return Problem(next((one for one in recipe.accepted if one.flag == flag), None), f"{name}: {error.message}")
    return Problem(None, f"there is no argument {rest[0]!r}", rest[0]) if rest else None


def help_asked_for(recipe: RecipeInfo, words: Sequence[str], command: str) -> str:
    """The help that a script prints for a command line with `--help`; empty: it would not print it. `command`: what the user has typed
    before them, for the line of usage."""
    parser = _parser(recipe, command)
    try:
        parser.parse_known_args(words)
    except _HelpAskedFor:
        return parser.format_help()
    except argparse.ArgumentError:
        return ""
    return ""


def _parser(recipe: RecipeInfo, command: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        command,
        description=f"{recipe.summary}\n\n{recipe.lesson}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("-h", "--help", action=_Help, nargs=0, help="show this help message and exit")
    for one in recipe.accepted:
        said = one.described.replace("%", "%%")
        if one.type == "bool":
            parser.add_argument(one.flag, action=argparse.BooleanOptionalAction, help=said)
        else:
            parser.add_argument(one.flag, type=_reader(one), metavar=one.type, help=said)
    return parser


def _reader(argument: Argument) -> Callable[[str], str]:
    def read(word: str) -> str:
        if problem := argument.problem(word):
            raise argparse.ArgumentTypeError(problem)
        return word

    return read
