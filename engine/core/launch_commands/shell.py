"""Takes shell text apart into simple commands, without a shell. Knows the syntax that commands of launchers need: quotes, `\\` at the end
of a line, comments, redirections, `&&`, `;`, `|` and `&`, and variables whose value the text itself sets. Everything else (`$(...)`,
`<(...)`, other variables) stays as it is, as one word."""

import ast
import contextlib
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import DOLLAR, LITERAL, Word

MAX_TEXT = 1 << 17  # longest simple command
MAX_VALUE = 1 << 12  # longest value that replaces a variable: values of values would double

_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


class Statement(NamedTuple):
    """A simple command: its text, its place, and the redirections after it, which are left out (`> log`, `| tee log`)."""

    text: str
    place: str
    left_out: tuple[str, ...] = ()
    is_typed: bool = False  # whether it is a command line, not a line of a file


_PART = re.compile(
    r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$\{[^}]{0,999}\}|(?<!\S)[<>]\((?:[^()]|\([^()]*\))*\)"  # words, or parts of words
    r"|(?P<comment>(?<!\S)#[^\n]*)"
    r"|(?P<redirect>(?:&>>?|(?<!\S)\d+[<>]+&?|[<>]+&?)[ \t]*(?:\d+(?=\s|$)|[^\s|&;]*))"
    r"|(?P<pipe>\|(?!\|)[^;&\n]*)"
    r"|(?P<end>&&|\|\||[&;\n])",
    re.DOTALL,
)

_HERE = re.compile(r"(?<!<)<<-?(?!<)[ \t]*[\"'\\]?(\w+)")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
_VARIABLE = re.compile(
    r"'[^']*'|\\.|\$\(\((?P<sum>[^()$`]{1,99}|[^()`]{1,99})\)\)|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`"
    r"|\$(?:\{(?P<braced>\w+)(?::?[-=](?P<default>[^{}]{0,999}))?\}|(?P<bare>\w+))", re.DOTALL,
)  # fmt: skip
OF_NODE = re.compile(r"SLURM_\w+|HOME|USER|PWD|TMPDIR|HOSTNAME|SCRATCH|WORK|STORE|\w*PATH|\w+_VISIBLE_DEVICES")
"""Variables that the environment of a job usually has, so that a default of the file says little."""
_SUBSTITUTION = re.compile(
    r"'[^']*'|\\.|(?P<found>[$<>]\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$\{[^}]{0,999}\})", re.DOTALL
)


def statements(text: str, name: str = "") -> Iterator[Statement]:
    """The simple commands of a command line, or of a batch file with a name, in order."""
    text = text.replace("\\\r\n", "\\\n").replace("\r\n", "\n")
    text = _without_here_documents(text)
    at, begun, kept, left_out = 0, -1, "", list[str]()
    for match in [*_PART.finditer(text), None]:
        end = len(text) if match is None else match.start()
        is_word = match is not None and match.lastgroup is None
        piece = text[at:end] + (" " if match is None or not is_word or match[0] == "\\\n" else match[0])
        if begun < 0 and piece.strip():
            begun = at + len(piece) - len(piece.lstrip())
        kept += piece
        if match is None or match["end"]:
            if kept.strip():
                place = f"{name}:{text.count(chr(10), 0, begun) + 1}" if name else "the command"
                yield Statement(kept.strip(), place, tuple(left_out), is_typed=not name)
            begun, kept, left_out = -1, "", []
        elif match["redirect"] or match["pipe"]:
            left_out.append(match[0].strip())
        at = len(text) if match is None else match.end()


def _without_here_documents(text: str) -> str:
    """The text with empty lines in place of here-documents: no command reads one here. Text without its end word stays."""
    lines = text.split("\n")
    last = {line.strip(" \t"): number for number, line in enumerate(lines)}
    ends: list[str] = []
    for number, line in enumerate(lines):
        if not ends:
            found = _HERE.findall(line) if "<<" in line and line.lstrip()[:1] != "#" else []
            ends = [word for word in found if last.get(word, -1) > number]
            continue
        if line.strip(" \t") == ends[0] or last[ends[0]] <= number:
            del ends[0]
        lines[number] = ""
    return "\n".join(lines)


def words_of(statement: Statement, known: Mapping[str, str]) -> list[Word]:
    """The words of a simple command. Variables with a known value are replaced. Raises UsageError if a quote is not closed."""
    raw = _QUOTED.sub(_with_marks, statement.text)
    text = _SUBSTITUTION.sub(
        lambda found: shlex.quote(found[0]) if found["found"] and " " in found[0] else found[0],
        replaced(raw, known),
    )
    if len(text) > MAX_TEXT:
        raise UsageError(f"{statement.place}: is longer than {MAX_TEXT >> 10} KiB with the values of its variables")
    try:
        parts = shlex.split(text)
    except ValueError as error:
        hint = "close the quotes"
        raise UsageError(f"{statement.place}: can't be read as words: {str(error).lower()}", hint=hint) from None
    if statement.is_typed:
        return [Word(part, f"word {number} of the command") for number, part in enumerate(parts, 1)]
    return [Word(part, statement.place) for part in parts]


def _with_marks(found: re.Match[str]) -> str:
    """A quoted part with the marks of `LITERAL` for what the shell takes literally there, and without `\\` at the end of a line."""
    part = found[0]
    marks = {ord(sign): chr(mark) for sign, mark in LITERAL.items() if part[0] == "'" or sign != "$"}
    if part[0] != "'":
        part = re.sub(
            r"\$\{[^}]{0,999}\}|\$\((?:[^()]|\([^()]*\))*\)|([^$]|\$)",
            lambda one: one[0].translate(marks) if one[1] else one[0],
            part,
            flags=re.DOTALL,
        )
        return part.replace("\\\n", "").replace("\\$", DOLLAR)
    return part.translate(marks)


def replaced(text: str, known: Mapping[str, str]) -> str:
    """The text with the values of variables in place of their names, except in single quotes."""

    def value(match: re.Match[str]) -> str:
        if match["sum"]:
            return _sum(
                re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda one: known.get(one[1], one[0]), match["sum"]), match[0]
            )
        name = match["braced"] or match["bare"] or ""
        is_known = name in known or match["default"] is None or OF_NODE.fullmatch(name)
        found = known.get(name, match[0]) if is_known else match["default"]
        return found if len(found) <= MAX_VALUE else match[0]

    return _VARIABLE.sub(value, text)


def _sum(text: str, otherwise: str) -> str:
    """The value of `$((...))`, if it only calculates with whole numbers that are not negative, of which the shell and Python think alike."""
    if re.fullmatch(r"[\d\s()+*/%-]+", text):
        with contextlib.suppress(SyntaxError, ValueError, ArithmeticError):
            return str(_number(ast.parse(text.strip(), mode="eval").body))
    return otherwise


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
        raise ValueError
    number = _OPERATIONS[type(node.op)](_number(node.left), _number(node.right))
    if number < 0:
        raise ValueError
    return number
