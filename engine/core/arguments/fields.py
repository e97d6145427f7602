"""Arguments that are fields of dataclasses or parameters of functions: transformers, trl, simple-parsing, tyro, fire and hydra."""

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from engine.core.arguments.argument import Argument
from engine.core.arguments.declarations import KINDS, MOST, as_list, keywords, literal, make, name_of, names_in


class Style(NamedTuple):
    """How a library makes words of fields: `between` the parts of a name, with `=` behind it or `--` before it. `nested`: fields of a field,
    with its name and a dot before theirs, without it, or not at all. `has_lists`: it takes `--x 1 2`, or `x=[1,2]`."""

    between: str = "_"
    is_one_word: bool = False
    nested: str = ""
    has_lists: bool = True
    takes_functions: bool = False


STYLES = {
    "HfArgumentParser": Style(),
    "TrlParser": Style(),
    "add_arguments": Style(nested="flat"),
    "parse": Style(nested="flat"),
    "cli": Style(between="-", nested="dotted", takes_functions=True),
    "Fire": Style(has_lists=False, takes_functions=True),
    "store": Style(is_one_word=True, nested="dotted"),
}
"""Calls that make a command line, by their name: transformers, trl, simple-parsing (two), tyro, fire, hydra."""

_DECLARED = frozenset(["arg", "field", "HfArg", "choice", "flag", "list_field", "mutable_field"])
"""Calls that declare a field of a dataclass."""

_LISTS = frozenset(["list", "List", "Sequence", "tuple", "Tuple"])
_SIMPLE = frozenset(["int", "float", "str", "bool", "Path", "Literal"])
_DESCRIBED = re.compile(r"^[ \t]*(\w+)[ \t]*(?:\([^)\n]*\))?:[ \t]+(\S[^\n]*)", re.MULTILINE)
"""`name: what it is`, or with a type in parentheses, in a docstring."""


class _Declared(NamedTuple):
    name: str
    annotation: ast.expr | None
    default: ast.expr | None
    help: str


class Fields:
    """Reads the fields of classes and the parameters of functions of one module."""

    def __init__(self, nodes: list[ast.AST], source: str, constants: dict[str, Any]) -> None:
        self._lines, self._constants = source.split("\n"), constants
        self._classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef) and _is_dataclass(node)}
        self._functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        self._done: set[str] = set()
        self._left = MOST

    def of_call(self, call: ast.Call) -> list[Argument]:
        """The arguments of a call that may make a command line."""
        style = STYLES.get(name_of(call.func))
        if style is None:
            return []
        if style.is_one_word and (group := keywords(call).get("group")):
            return self._choice_of_group(call, group)
        if style.takes_functions:
            target = name_of(call.args[0]) if call.args else ""
            if target in self._functions:
                return self._all(_parameters(self._functions[target]), style, "", ())
            return self._of_class(target, style)
        given = [*call.args, *(word.value for word in call.keywords)]
        names = dict.fromkeys(name for part in given for name in names_in(part))
        return [one for name in names for one in self._of_class(name, style)]

    def _of_class(self, name: str, style: Style) -> list[Argument]:
        if name not in self._classes or name in self._done:
            return []
        self._done.add(name)
        return self._all(self._fields_of(name), style, "", (name,))

    def _choice_of_group(self, call: ast.Call, group: ast.expr) -> list[Argument]:
        """hydra: `db=mysql` chooses one of the configurations of a group."""
        key, chosen = literal(group, self._constants), literal(keywords(call).get("name"), self._constants)
        if not isinstance(key, str) or not isinstance(chosen, str):
            return []
        return [make(f"{key}=", "str", {"choices": as_list([ast.Constant(value=chosen)])}, {})]

    def _all(self, declared: Iterator[_Declared], style: Style, prefix: str, above: tuple[str, ...]) -> list[Argument]:
        """The arguments of fields. `above`: the classes that have led here."""
        found: list[Argument] = []
        for one in declared:
            self._left -= 1
            if self._left < 0:
                break
            names = names_in(one.annotation) if one.annotation else ()
            below = next((name for name in names if name in self._classes), "")
            if not below:
                argument = self._argument(one, style, prefix)
                found += [] if argument is None else [argument]
            elif style.nested and below not in above:
                inner = f"{prefix}{_written(one.name, style)}." if style.nested == "dotted" else prefix
                found += self._all(self._fields_of(below), style, inner, (*above, below))
        return found

    def _fields_of(self, name: str) -> Iterator[_Declared]:
        """The fields of a class; before them, those of its bases."""
        for one in self._with_bases(name, {}):
            yield from self._own_fields_of(one)

    def _with_bases(self, name: str, found: dict[str, None]) -> Iterator[str]:
        """The class and those that it inherits from, each once."""
        found[name] = None
        for base in self._classes[name].bases:
            if (inherited := name_of(base)) in self._classes and inherited not in found:
                yield from self._with_bases(inherited, found)
        yield name

    def _own_fields_of(self, name: str) -> Iterator[_Declared]:
        node = self._classes[name]
        described = dict(_DESCRIBED.findall(ast.get_docstring(node) or ""))
        for place, one in enumerate(node.body):
            if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
                continue
            after = node.body[place + 1] if place + 1 < len(node.body) else None
            text = literal(after.value, {}) if isinstance(after, ast.Expr) else None
            said = text if isinstance(text, str) else described.get(one.target.id, "") or self._comment(one)
            yield _Declared(one.target.id, one.annotation, one.value, said)

    def _comment(self, node: ast.AnnAssign) -> str:
        """The comment behind a field, or in the lines above it."""
        end = (node.end_lineno or node.lineno) - 1
        behind = self._lines[end].encode()[node.end_col_offset or 0 :].decode("utf-8", "replace")
        if "#" in behind:
            return behind.partition("#")[2].strip()
        above: list[str] = []
        for line in reversed(self._lines[: node.lineno - 1]):
            if not line.lstrip().startswith("#"):
                break
            above.insert(0, line.strip().lstrip("#").strip())
        return " ".join(above)

    def _argument(self, one: _Declared, style: Style, prefix: str) -> Argument | None:
        """The argument of a field; None: no command line can give a value of its type."""
        given = _given(one)
        annotation = one.annotation
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
        if isinstance(annotation, ast.Subscript) and name_of(annotation.value) == "Annotated":
            # The type in `Annotated[type, …]`, and the text about it.
            parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            told = [keywords(part) for part in parts[1:] if isinstance(part, ast.Call)]
            annotation, said = parts[0], {key: value for one in told for key, value in one.items() if key == "help"}
            given = {**said, **given}
        names = [one for one in names_in(annotation) if one not in ("Optional", "Union", "None")] if annotation else []
        default = literal(given.get("default"), self._constants)
        kind = names[0] if names else type(default).__name__ if isinstance(default, (bool, int, float, str)) else ""
        many: dict[str, Any] = {}
        if kind in _LISTS and annotation is not None:
            many = {"many": "list" if style.is_one_word else "words", "count": _length(annotation)}
            kind = names[1] if len(names) > 1 else "str"
        if kind == "Literal" and annotation is not None:
            given["choices"] = as_list([part for part in ast.walk(annotation) if isinstance(part, ast.Constant)])
        if kind not in _SIMPLE or (many and (not style.has_lists or kind == "bool" or many["count"] is None)):
            return None
        word = _written(one.name, style)
        word = f"{prefix}{word}=" if style.is_one_word else f"--{prefix}{word}"
        if kind == "bool":
            return self._of_bool(word, style, given)
        return make(word, KINDS.get(kind, "str"), given, self._constants, **many)

    def _of_bool(self, word: str, style: Style, given: dict[Any, ast.expr]) -> Argument:
        if style.between == "-":
            head, dot, last = word.rpartition(".")  # `--optim.no-nesterov` of tyro
            off = f"{head}.no-{last}" if dot else f"--no-{word[2:]}"
            return make(word, "bool", given, self._constants, off=off)
        values = ("true", "false") if style.is_one_word else ("True", "False")
        default = literal(given.get("default"), self._constants)
        said = dict(zip((True, False), values, strict=True)).get(default, "") if isinstance(default, bool) else ""
        return make(word, "str", given, self._constants, default=said, choices=values)


def _given(one: _Declared) -> dict[Any, ast.expr]:
    """The values that a field's declaration gives, by keyword; see `make`."""
    call = one.default
    given: dict[Any, ast.expr] = {}
    if isinstance(call, ast.Call) and (name := name_of(call.func)) in _DECLARED:
        given = keywords(call)
        if name == "choice":
            given["choices"] = as_list(call.args)
        elif name == "list_field":
            given["default"] = as_list(call.args)
        elif name == "flag" and call.args:
            given["default"] = call.args[0]
        factory = given.get("default_factory")
        if isinstance(factory, ast.Lambda):
            given["default"] = factory.body
        if "default" not in given and factory is None and name in ("arg", "field", "HfArg", "choice"):
            given["required"] = ast.Constant(value=True)
        if isinstance(metadata := given.get("metadata"), ast.Dict):
            pairs = zip(metadata.keys, metadata.values, strict=True)
            given |= {"help": value for key, value in pairs if key is not None and literal(key, {}) == "help"}  # noqa: B035
    elif call is None or name_of(call) == "MISSING":  # hydra's
        given = {"required": ast.Constant(value=True)}
    else:
        given = {"default": call}
    if "help" not in given and one.help:
        given["help"] = ast.Constant(value=one.help)
    return given


def _parameters(node: ast.FunctionDef) -> Iterator[_Declared]:
    """The parameters of a function that have a name on the command line."""
    described = dict(_DESCRIBED.findall(ast.get_docstring(node) or ""))
    plain = [*node.args.posonlyargs, *node.args.args]
    defaults = [*[None] * (len(plain) - len(node.args.defaults)), *node.args.defaults]
    for one, default in zip([*plain, *node.args.kwonlyargs], [*defaults, *node.args.kw_defaults], strict=True):
        if one not in node.args.posonlyargs:
            yield _Declared(one.arg, one.annotation, default, described.get(one.arg, ""))


def _length(annotation: ast.expr) -> int | None:
    """How many values `tuple[int, int]` has, 0: any number; None: they are of several types."""
    inner = next(
        (one for one in ast.walk(annotation) if isinstance(one, ast.Subscript) and name_of(one.value) in _LISTS), None
    )
    if inner is None or name_of(inner.value).lower() != "tuple" or not isinstance(inner.slice, ast.Tuple):
        return 0
    parts = inner.slice.elts
    if any(isinstance(part, ast.Constant) and part.value is ... for part in parts):
        return 0
    return len(parts) if len({ast.dump(part) for part in parts}) == 1 else None


def _written(name: str, style: Style) -> str:
    return name.replace("_", style.between)


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(name_of(one.func if isinstance(one, ast.Call) else one) == "dataclass" for one in node.decorator_list)
