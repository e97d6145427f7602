"""The command line of a user's script, read from its source without running it: argparse, click, dataclasses, functions and hydra. Reads
literals only. Arguments that other modules declare are missing, so this helps to fill in a form, and refuses nothing."""

import ast
import re
from typing import Any

import msgspec

from engine.core.arguments.argument import Argument
from engine.core.arguments.declarations import KINDS, MOST, constants_of, in_order, keywords, literal, make, name_of
from engine.core.arguments.fields import Fields

_FLAG = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9_.-]{0,60}=?")


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
    declared = [call for call in calls if name_of(call.func) == "add_argument"]
    if any(_is_rest(call, constants) for call in declared):
        return ()
    has_one_parser = sum(name_of(call.func) == "ArgumentParser" for call in calls) == 1
    found: list[Argument | None] = [*(_positional(declared, constants) if has_one_parser else ())]
    found += [_argparse(call, constants) for call in declared]
    functions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    decorators = [one for node in functions for one in node.decorator_list if isinstance(one, ast.Call)]
    found += [_click(one, constants) for one in decorators if name_of(one.func) == "option"]
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
    """A call of `add_argument`; None: it is no option, or one that has no line in a form."""
    given = keywords(call)
    flags = _flags(call)
    action = given.get("action")
    kind = literal(action, {}) if isinstance(action, ast.Constant) else name_of(action)
    several = _several(given, constants) if "nargs" in given or kind == "append" else {}
    if not flags or several is None or kind in ("append_const", "count", "extend", "help", "version"):
        return None
    word = _longest(flags)
    fixed = {"aliases": tuple(flag for flag in flags if flag != word and flag.isprintable())}
    if kind in ("store_true", "store_false", "store_const"):
        return make(word, "bool", given, constants, default=False, off="", **fixed)
    if kind == "BooleanOptionalAction":
        return make(word, "bool", given, constants, off=f"--no-{word.removeprefix('--')}", **fixed)
    kind = KINDS.get(name_of(given.get("type")), "str" if several else "")
    return make(word, kind, given, constants, **several, **fixed)


def _several(given: dict[Any, ast.expr], constants: dict[str, Any]) -> dict[str, Any] | None:
    """How an option of argparse takes several values; None: in a way that has no line in a form."""
    number = literal(given.get("nargs"), constants)
    if "nargs" not in given:
        return {"many": "again"}
    if literal(given.get("action"), {}) == "append":
        return None
    if number == "?":  # without a value, it means `const`
        alone = literal(given.get("const"), constants)
        word = str(alone) if isinstance(alone, (int, float, str)) else ""
        return {"alone": word} if word and word.isprintable() and word == word.strip() else None
    if number in ("+", "*"):
        return {"many": "words"}
    return {"many": "words", "count": number} if type(number) is int and number > 0 else None


def _positional(calls: list[ast.Call], constants: dict[str, Any]) -> list[Argument]:
    """The positional arguments of a parser, in order; none if one of them is unknown, because then the places of the others are unknown
    too."""
    found = []
    for call in calls:
        given = keywords(call)
        first = call.args[0] if call.args else given.get("dest")
        start = first.values[0] if isinstance(first, ast.JoinedStr) and first.values else first  # f"--{name}"
        if first is None or str(literal(start, {})).startswith("-"):
            continue
        name = literal(first, constants)
        number = literal(given.get("nargs"), constants) if "nargs" in given else None
        several = _several({"nargs": given["nargs"]}, constants) if number not in (None, "?") else {}
        if len(call.args) > 1 or not isinstance(name, str) or "action" in given or several is None:
            return []
        fixed = {**several, "is_positional": True, "is_optional": number in ("?", "*")}
        given |= {} if fixed["is_optional"] else {"required": ast.Constant(value=True)}
        found.append(make(name, KINDS.get(name_of(given.get("type")), "str"), given, constants, **fixed))
    return found


def _is_rest(call: ast.Call, constants: dict[str, Any]) -> bool:
    """Whether an argument takes all that follows it, also words that look like others."""
    number = keywords(call).get("nargs")
    return name_of(number) in ("REMAINDER", "PARSER") or literal(number, constants) in ("...", "A...")


def _flags(call: ast.Call) -> list[str]:
    return [flag for one in call.args if isinstance(flag := literal(one, {}), str) and flag.startswith("-")]


def _click(call: ast.Call, constants: dict[str, Any]) -> Argument | None:
    given = keywords(call)
    flags = _flags(call)
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
