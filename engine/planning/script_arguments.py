"""The command line of a user's script, read from its source without running it: argparse, click, dataclasses and hydra.

Only what is written as literals is known. Positional arguments, options with several values and arguments that other modules declare are left
out, so this helps to fill in a form, and refuses nothing. Sources may be of strangers: texts are made printable.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.core.catalogue import Argument, Value

LARGEST = 1_000_000
"""Bytes of a script that is read."""

_FLAG = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9_.-]{0,60}=?")

_KINDS = {"int": "int", "INT": "int", "IntRange": "int", "float": "float", "FLOAT": "float", "FloatRange": "float"}
"""Types by the last part of their names in argparse, click and annotations; all others are texts."""

_PARSERS = {"HfArgumentParser": "_", "TrlParser": "_", "add_arguments": "_", "parse": "_", "cli": "-", "store": "="}
"""Calls that make a command line of dataclasses (transformers, trl, simple-parsing, tyro, hydra), and how they write a name."""

_DECLARED = {"arg", "field", "HfArg"}
"""Calls that declare a field of a dataclass."""

_NOTHING = object()
"""Not a literal."""


def arguments_of(path: Path) -> tuple[Argument, ...]:
    """The arguments that the script at `path` declares; empty if it can't be read."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return ()
        return read_arguments(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()


def read_arguments(source: str) -> tuple[Argument, ...]:
    """The arguments that a script declares, in their order; empty: none are found, or it has sub-commands."""
    try:
        tree = ast.parse(source)
        nodes = list(_in_order(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    constants = {
        target.id: value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and (value := _literal(node.value, {})) is not _NOTHING
    }
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if any(_name(call.func) in ("add_subparsers", "group") for call in calls):
        return ()
    found = [_argparse(call, constants) for call in calls if _name(call.func) == "add_argument"]
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found += [
                _click(one, constants)
                for one in node.decorator_list
                if isinstance(one, ast.Call) and _name(one.func) == "option"
            ]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef) and _is_dataclass(node)}
    for call in calls:
        style = _PARSERS.get(_name(call.func), "")
        for name in dict.fromkeys(_names_in(call)) if style else ():
            if name in classes:
                found += _fields(classes.pop(name), style, constants)
    known = {one.name: one for one in reversed(found) if one is not None and _FLAG.fullmatch(one.word)}
    return tuple(sorted(known.values(), key=found.index))


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, in the order of the source."""
    for child in ast.iter_child_nodes(node):
        yield child
        yield from _in_order(child)


def _argparse(call: ast.Call, constants: dict[str, Any]) -> Argument | None:
    """A call of `add_argument`; None: it is no option, or takes several values."""
    given = {word.arg: word.value for word in call.keywords if word.arg}
    flags = [flag for one in call.args if isinstance(flag := _literal(one, {}), str) and flag.startswith("-")]
    action = given.get("action")
    kind = _literal(action, {}) if isinstance(action, ast.Constant) else _name(action)
    if not flags or "nargs" in given or kind in ("append", "append_const", "extend", "count", "help", "version"):
        return None
    word = _longest(flags)
    if kind in ("store_true", "store_false", "store_const"):
        return _make(word, "bool", given, constants, default=False, off="")
    if kind == "BooleanOptionalAction":
        return _make(word, "bool", given, constants, off=f"--no-{word.removeprefix('--')}")
    return _make(word, _KINDS.get(_name(given.get("type")), ""), given, constants)


def _click(call: ast.Call, constants: dict[str, Any]) -> Argument | None:
    """A decorator `click.option`."""
    given = {word.arg: word.value for word in call.keywords if word.arg}
    flags = [flag for one in call.args if isinstance(flag := _literal(one, {}), str) and flag.startswith("-")]
    if not flags or "nargs" in given or any(_literal(given.get(key), {}) is True for key in ("multiple", "count")):
        return None
    word, slash, off = _longest(flags).partition("/")
    if slash or _literal(given.get("is_flag"), {}) is True:
        return _make(word.strip(), "bool", given, constants, off=off.strip())
    kind = given.get("type")
    if isinstance(kind, ast.Call):
        keys = {"min": "low", "max": "high"}
        given |= {keys.get(word.arg or "", ""): word.value for word in kind.keywords}
        given |= dict(zip(("choices",) if _name(kind.func) == "Choice" else ("low", "high"), kind.args, strict=False))
        kind = kind.func
    return _make(word, _KINDS.get(_name(kind), ""), given, constants)


def _fields(node: ast.ClassDef, style: str, constants: dict[str, Any]) -> list[Argument | None]:
    """The fields of a dataclass. `style`: see `_PARSERS`."""
    found: list[Argument | None] = []
    for place, one in enumerate(node.body):
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
            continue
        given: dict[str | None, ast.expr] = {}
        if isinstance(one.value, ast.Call) and _name(one.value.func) in _DECLARED:
            given = {word.arg: word.value for word in one.value.keywords}
            if isinstance(metadata := given.get("metadata"), ast.Dict):
                pairs = zip(metadata.keys, metadata.values, strict=True)
                given |= {"help": value for key, value in pairs if key is not None and _literal(key, {}) == "help"}  # noqa: B035
        elif one.value is not None:
            given = {"default": one.value}
        after = node.body[place + 1] if place + 1 < len(node.body) else None
        if "help" not in given and isinstance(
            after, ast.Expr
        ):  # a text below the field, as tyro and simple-parsing read it
            given["help"] = after.value
        names = [name for name in _names_in(one.annotation) if name not in ("Optional", "Union", "None")]
        kind = names[0] if names else ""
        if kind == "Literal":
            given["choices"] = ast.List(
                elts=[part for part in ast.walk(one.annotation) if isinstance(part, ast.Constant)]
            )
        elif kind not in ("int", "float", "str", "bool", "Path"):
            continue
        found.append(_field(one.target.id, kind, style, given, constants))
    return found


def _field(
    name: str, kind: str, style: str, given: dict[str | None, ast.expr], constants: dict[str, Any]
) -> Argument | None:
    word = f"{name}=" if style == "=" else f"--{name.replace('_', '-') if style == '-' else name}"
    if kind != "bool":
        return _make(word, _KINDS.get(kind, "str"), given, constants)
    if style == "-":
        return _make(word, "bool", given, constants, off=f"--no-{word[2:]}")
    values = ("true", "false") if style == "=" else ("True", "False")
    default = _literal(given.get("default"), constants)
    said = dict(zip((True, False), values, strict=True)).get(default, "") if isinstance(default, bool) else ""
    return _make(word, "str", given, constants, default=said, choices=values)


def _make(
    word: str,
    kind: str,
    given: dict[Any, ast.expr],
    constants: dict[str, Any],
    **fixed: Any,
) -> Argument:
    """An argument of what its declaration says; `fixed` wins."""
    said = {key: value for key, node in given.items() if (value := _literal(node, constants)) is not _NOTHING}
    default: Value = said["default"] if isinstance(said.get("default"), (int, float, str)) else ""
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
        "help": _help(said.get("help"), default) + (" (required)" if said.get("required") is True else ""),
        **numbers,
    }
    return Argument(name=name, type=kind, word=word, **{**facts, **fixed})  # type: ignore[arg-type]  # kind is one of them


def _help(said: object, default: Value) -> str:
    text = said if isinstance(said, str) else ""
    text = text.replace("%(default)s", str(default)).replace("%%", "%")
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())[:300]


def _longest(flags: list[str]) -> str:
    """The flag that says most: `--batch-size` of `-b` and `--batch-size`."""
    return next((flag for flag in flags if flag.startswith("--")), flags[0])


def _literal(node: ast.expr | None, constants: dict[str, Any]) -> Any:
    """The value of a literal, or of a constant of the module; else `_NOTHING`."""
    if isinstance(node, ast.Name):
        return constants.get(node.id, _NOTHING)
    try:
        return _NOTHING if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _NOTHING


def _name(node: ast.expr | None) -> str:
    """The last part of a name: `option` of `click.option`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names_in(node: ast.AST) -> list[str]:
    """The names in an expression, also in an annotation that is a text."""
    found = []
    for one in _in_order(ast.Expression(body=node) if isinstance(node, ast.expr) else node):  # the node itself too
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            found += re.findall(r"\w+", one.value)
        elif name := _name(one if isinstance(one, ast.expr) else None):
            found.append(name)
    return found


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(_name(one.func if isinstance(one, ast.Call) else one) == "dataclass" for one in node.decorator_list)
