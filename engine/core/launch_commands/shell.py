"""Takes shell text apart into simple commands, without a shell. Knows the syntax that commands of launchers need: quotes, `\\` at the end
of a line, comments, redirections, `&&`, `;`, `|` and `&`, and variables whose value the text itself sets. Everything else (`$(...)`,
`<(...)`, other variables) stays as it is, as one word."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from engine.core.errors import UsageError
from engine.core.launch_commands.draft import DOLLAR, Word

MAX_TEXT = 1 << 17  # longest simple command
MAX_VALUE = 1 << 12  # longest value that replaces a variable: values of values would double


class Statement(NamedTuple):
    """A simple command: its text, its place, and the redirections after it, which are left out (`> log`, `| tee log`)."""

    text: str
    place: str
    left_out: tuple[str, ...] = ()
    is_typed: bool = False  # whether it is a command line, not a line of a file


_PART = re.compile(
    r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$\{[^}]*\}|(?<!\S)[<>]\((?:[^()]|\([^()]*\))*\)"  # words, or parts of words
    r"|(?P<comment>(?<!\S)#[^\n]*)"
    r"|(?P<redirect>(?:&>>?|(?<!\S)\d+[<>]+&?|[<>]+&?)[ \t]*(?:\d+(?=\s|$)|[^\s|&;]*))"
    r"|(?P<pipe>\|(?!\|)[^;&\n]*)"
    r"|(?P<end>&&|\|\||[&;\n])",
    re.DOTALL,
)

_HERE = re.compile(r"(?<!<)<<-?(?!<)[ \t]*[\"'\\]?(\w+)")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
_VARIABLE = re.compile(
    r"'[^']*'|\\.|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))", re.DOTALL
)
_SUBSTITUTION = re.compile(r"'[^']*'|\\.|(?P<found>[$<>]\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$\{[^}]*\})", re.DOTALL)


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
    """A quoted part with `DOLLAR` for each `$` that the shell takes literally, and without `\\` at the end of a line."""
    part = found[0]
    if part[0] == "'":
        return part.replace("$", DOLLAR)
    return part.replace("\\\n", "").replace("\\$", DOLLAR)


def replaced(text: str, known: Mapping[str, str]) -> str:
    """The text with the values of variables in place of their names, except in single quotes."""

    def value(match: re.Match[str]) -> str:
        found = known.get(match["braced"] or match["bare"] or "", match[0])
        return found if len(found) <= MAX_VALUE else match[0]

    return _VARIABLE.sub(value, text)
