"""Finds where the keys of a profile are written: file, line or `--set` option, for errors and warnings. Neither tomli nor tomlkit reports
lines. `key_lines` reads only table headers, keys, and the extent of multi-line values. tomli has already accepted the text."""

from engine.core.errors import ProfileError
from engine.core.patterns import late

_HEADER = late(r"^\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = late(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = late(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_VALUE_TOKEN = late(r'"""|\'\'\'|"(?:\\.|[^"\\])*"|\'[^\']*\'|[\[\]{}]|#.*')


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


def printable(text: str) -> str:
    """The text as one printable line: keys of a file may contain any character."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


class Places:
    """Turns a key path into file and line for an error or a warning."""

    def __init__(self, file: str, lines: dict[tuple[str, ...], int]) -> None:
        self.file = file
        self.lines = lines
        self.overridden: dict[tuple[str, ...], str] = {}

    def error(self, path: tuple[str, ...], reason: str, *, hint: str | None = None) -> ProfileError:
        """An error about a key. It names the `--set` option if one has set the key."""
        key, reason = printable(".".join(path)), printable(reason)
        for overridden, word in self.overridden.items():
            if path[: len(overridden)] == overridden or overridden[: len(path)] == path != ():
                return ProfileError(word, None, "", reason, hint=hint)
        return ProfileError(self.file, line_of(self.lines, path), key, reason, hint=hint)

    def check_range(self, path: tuple[str, ...], value: float, least: int, most: int, unit: str = "") -> None:
        """Raises ProfileError: the value of a key is too small or too large. `unit`: such as ` seconds`; may be empty."""
        if not least <= value <= most:
            shown = f"{value:g}" if isinstance(value, float) else value
            raise self.error(path, f"must be {least} to {most}{unit}, not {shown}")

    def check_text(self, path: tuple[str, ...], *texts: str) -> None:
        """Raises ProfileError: a text has a NUL byte, which no process can get."""
        if any("\0" in text for text in texts):
            raise self.error(path, "contains a NUL byte")

    def where(self, path: tuple[str, ...]) -> str:
        """The place of a key: `profile.toml:12`, or `--set`."""
        if any(path[: len(overridden)] == overridden for overridden in self.overridden):
            return "--set"
        line = line_of(self.lines, path)
        return f"{self.file}:{line}" if line else self.file
