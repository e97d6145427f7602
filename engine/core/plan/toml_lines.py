"""Finds the line of every key in a TOML text, for errors.

Neither tomli nor tomlkit reports lines. This module reads only table headers, keys, and the extent of multi-line values. tomli has
already accepted the text.
"""

from __future__ import annotations

import re

_HEADER = re.compile(r"^\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_VALUE_TOKEN = re.compile(r'"""|\'\'\'|"(?:\\.|[^"\\])*"|\'[^\']*\'|[\[\]{}]|#.*')


def _dotted(text: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(text))


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Maps every key path of a valid TOML text to its line, counted from 1. Returns for `[layout]` and `nodes = …` below it:
    `("layout",)` and `("layout", "nodes")`."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    depth = 0
    quote = ""
    for number, line in enumerate(text.split("\n"), 1):
        rest = line
        if not quote and depth == 0:
            if header := _HEADER.match(line):
                table = _dotted(header[1])
                _note(found, (), table, number)
                continue
            if key := _KEY.match(line):
                _note(found, table, _dotted(key[1]), number)
                rest = line[key.end() :]
        depth, quote = _after(rest, depth, quote)
    return found


def _note(found: dict[tuple[str, ...], int], table: tuple[str, ...], key: tuple[str, ...], number: int) -> None:
    """Notes the line of a key, and of the tables that a dotted key creates."""
    for length in range(1, len(key) + 1):
        found.setdefault(table + key[:length], number)


def _after(rest: str, depth: int, quote: str) -> tuple[int, str]:
    """The bracket depth and the open multi-line quote after one line of a value."""
    position = 0
    while position < len(rest):
        if quote:
            end = rest.find(quote, position)
            if end < 0:
                return depth, quote
            position, quote = end + 3, ""
            continue
        token = _VALUE_TOKEN.search(rest, position)
        if token is None:
            break
        position = token.end()
        match token[0][0:3]:
            case '"""' | "'''":
                quote = token[0]
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth = max(0, depth - 1)
    return depth, quote


def line_of(lines: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int | None:
    """The line of a key path, or of the nearest table around it that has one."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None
