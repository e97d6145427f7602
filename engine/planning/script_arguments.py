"""The command line of a user's script, read from its source without running it: argparse, click, dataclasses, functions and hydra.

Only what is written as literals is known. Positional arguments, options whose value may be left out, and arguments that other modules
declare are left out, so this helps to fill in a form, and refuses nothing.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import msgspec

from engine.core.catalogue import Argument
from engine.planning.declarations import KINDS, MOST, constants_of, in_order, keywords, literal, make, name_of
from engine.planning.declared_fields import Fields

LARGEST = 1_000_000
"""Bytes of a script that is read."""

_FLAG = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9_.-]{0,60}=?")


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
        return _arguments(ast.parse(source), source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _arguments(tree: ast.Module, source: str) -> tuple[Argument, ...]:
    nodes = list(in_order(tree))
    constants = constants_of(tree)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if any(name_of(call.func) in ("add_subparsers", "subparsers", "group") for call in calls):
        return ()
    found = [_argparse(call, constants) for call in calls if name_of(call.func) == "add_argument"]
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found += [
                _click(one, constants)
                for one in node.decorator_list
                if isinstance(one, ast.Call) and name_of(one.func) == "option"
            ]
    fields = Fields(nodes, source, constants)
    for call in calls:
        found += fields.of_call(call)
    known: dict[str, Argument] = {}
    for one in found:
        if one is None or not _FLAG.fullmatch(one.word):
            continue
        if len(known) == MOST:
            break
        before = known.setdefault(one.name, one)  # a form has one line for `-lr` and `--lr`
        if before is not one and before.word.endswith("=") and one.choices:  # another entry of hydra's group
            known[one.name] = msgspec.structs.replace(before, choices=(*before.choices, *one.choices))
    return tuple(known.values())


def _argparse(call: ast.Call, constants: dict[str, Any]) -> Argument | None:
    """A call of `add_argument`; None: it is no option, or its value may be left out."""
    given = keywords(call)
    flags = [flag for one in call.args if isinstance(flag := literal(one, {}), str) and flag.startswith("-")]
    action = given.get("action")
    kind = literal(action, {}) if isinstance(action, ast.Constant) else name_of(action)
    several = _several(given, constants) if "nargs" in given or kind == "append" else {}
    if not flags or several is None or kind in ("append_const", "count", "extend", "help", "version"):
        return None
    word = _longest(flags)
    if kind in ("store_true", "store_false", "store_const"):
        return make(word, "bool", given, constants, default=False, off="")
    if kind == "BooleanOptionalAction":
        return make(word, "bool", given, constants, off=f"--no-{word.removeprefix('--')}")
    return make(word, KINDS.get(name_of(given.get("type")), "str" if several else ""), given, constants, **several)


def _several(given: dict[Any, ast.expr], constants: dict[str, Any]) -> dict[str, Any] | None:
    """How an option of argparse takes several values; None: in a way that has no line in a form."""
    number = literal(given.get("nargs"), constants)
    if "nargs" not in given:
        return {"many": "again"}
    if literal(given.get("action"), {}) == "append":
        return None
    if number in ("+", "*"):
        return {"many": "words"}
    return {"many": "words", "count": number} if type(number) is int and number > 0 else None


def _click(call: ast.Call, constants: dict[str, Any]) -> Argument | None:
    """A decorator `click.option`."""
    given = keywords(call)
    flags = [flag for one in call.args if isinstance(flag := literal(one, {}), str) and flag.startswith("-")]
    if not flags or literal(given.get("count"), {}) is True:
        return None
    word, slash, off = _longest(flags).partition("/")
    if slash or literal(given.get("is_flag"), {}) is True:
        return make(word.strip(), "bool", given, constants, off=off.strip())
    several: dict[str, Any] = {"many": "again"} if literal(given.get("multiple"), {}) is True else {}
    if "nargs" in given:
        number = literal(given["nargs"], constants)
        if several or type(number) is not int or number < 1:
            return None
        several = {"many": "words", "count": number} if number > 1 else {}
    kind = given.get("type")
    if isinstance(kind, ast.Call):
        keys = {"min": "low", "max": "high"}
        given |= {keys.get(word.arg or "", ""): word.value for word in kind.keywords}
        given |= dict(zip(("choices",) if name_of(kind.func) == "Choice" else ("low", "high"), kind.args, strict=False))
        kind = kind.func
    return make(word, KINDS.get(name_of(kind), "str" if several else ""), given, constants, **several)


def _longest(flags: list[str]) -> str:
    """The flag that says most: `--batch-size` of `-b` and `--batch-size`."""
    return next((flag for flag in flags if flag.startswith("--")), flags[0])
