"""Reads names and values from the declarations in a user's source, if they are literals, for `script`. A stranger may have written the
source, so texts are made printable."""

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from engine.core.arguments.argument import Argument, Value

KINDS = {"int": "int", "INT": "int", "IntRange": "int", "float": "float", "FLOAT": "float", "FloatRange": "float"}
"""Types by the last part of their names in argparse, click and annotations; all others are texts."""

MOST = 500
"""Arguments of one script, which are lines of a form. Few lines of source can declare millions: classes that contain one another."""

NOTHING = object()  # not a literal

_NO_WORD = re.compile(r"[\s\"'\\\[\],]")


def make(word: str, kind: str, given: dict[Any, ast.expr], constants: dict[str, Any], **fixed: Any) -> Argument:
    """An argument of what its declaration says. `given`: expressions by the names `default`, `choices`, `help`, `required`, `low` and
    `high`. `fixed`: fields of the argument, which win."""
    said = {key: value for key, node in given.items() if (value := literal(node, constants)) is not NOTHING}
    default: Value = said["default"] if isinstance(said.get("default"), (int, float, str)) else ""
    if fixed.get("many"):
        default = _several(said.get("default"))
    if isinstance(default, str) and not default.isprintable():
        default = ""
    if not kind:
        kind = "str" if isinstance(default, (str, bool)) else type(default).__name__
    if kind == "bool":
        default = default is True
    elif isinstance(default, bool):
        default = str(default)
    choices = said.get("choices", ())
    if not isinstance(choices, (list, tuple)) or not all(isinstance(one, (int, float, str)) for one in choices):
        choices = ()
    numbers = {key: said[key] for key in ("low", "high") if type(said.get(key)) in (int, float)}
    name = word.lstrip("-").rstrip("=")
    facts: dict[str, Any] = {
        "default": default,
        "choices": tuple(one for one in choices if str(one).isprintable()),
        "help": _help(said.get("help"), default),
        "is_required": said.get("required") is True,
        **numbers,
    }
    return Argument(name=name, type=kind, word=word, **{**facts, **fixed})  # type: ignore[arg-type]  # kind is one of them


def _several(default: object) -> str:
    """Several values as one text; empty if one of them needs more than a word."""
    words = [str(one) for one in default] if isinstance(default, (list, tuple)) else []
    return "" if any(_NO_WORD.search(word) for word in words) else shlex.join(words)


def _help(said: object, default: Value) -> str:
    text = said if isinstance(said, str) else ""
    text = text.replace("%(default)s", str(default)).replace("%%", "%")
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())[:300]


def literal(node: ast.expr | None, constants: dict[str, Any]) -> Any:
    """The value of a literal, or of a constant of the module; else `NOTHING`."""
    if isinstance(node, ast.Name):
        return constants.get(node.id, NOTHING)
    try:
        return NOTHING if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return NOTHING


def constants_of(tree: ast.Module) -> dict[str, Any]:
    return {
        target.id: value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and (value := literal(node.value, {})) is not NOTHING
    }


def name_of(node: ast.AST | None) -> str:
    """The last part of a name: `option` of `click.option`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names_in(node: ast.AST) -> list[str]:
    """The names in an expression, also in an annotation that is a text."""
    found = []
    for one in in_order(ast.Expression(body=node) if isinstance(node, ast.expr) else node):  # the node itself too
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            found += re.findall(r"\w+", one.value)
        elif name := name_of(one):
            found.append(name)
    return found


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, in the order of the source. Takes no more time for deep trees than for flat ones."""
    waiting = [*ast.iter_child_nodes(node)][::-1]
    while waiting:
        yield (one := waiting.pop())
        waiting += [*ast.iter_child_nodes(one)][::-1]


def keywords(call: ast.Call) -> dict[Any, ast.expr]:
    return {word.arg: word.value for word in call.keywords if word.arg}


def as_list(parts: Sequence[ast.expr]) -> ast.expr:
    return ast.List(elts=list(parts), ctx=ast.Load())
