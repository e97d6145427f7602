"""Turns what loggers and libraries make of tracebacks and messages into lines as Python prints them. Reads rich's frames, loguru, records
in JSON or logfmt with a traceback inside, groups of exceptions, torchrun's error files, and the boxes in which typer and tyro put errors."""

import re
from collections.abc import Iterator, Sequence

from engine.core.patterns import late

HEADER = "Traceback (most recent call last):"

MEMBER = "This exception is one of a group:"
"""Replaces the line between a group of exceptions and the traceback of a member."""

MAX_BOX = 2000  # longest box, in lines

_BOX = late(r"\s*[╭┏╔┌](?P<title>.*)")
_BOX_END = late(r"\s*[╰┗╚└]")
_BOX_LINE = late(r"\s*[│┃║] ?(?P<text>.*?)\s*[│┃║]?\s*$")
_BOX_FRAME = late(r"(?P<file>\S.*?):(?P<line>\d+) in (?P<function>\S+)")
_BOX_CODE = late(r"❱ *\d+ (?P<code>.*)")
_FULL_LINE = 60  # least length of a line of rich that the next line may continue
_GROUP_LINE = late(r" +[|+] ?")
_GROUP_RULE = late(r" *\+(?:-\+)?-{4,}(?: \d+ )?-*$")
_GROUP_HEADER = late(r" *\+ Exception Group Traceback \(most recent call last\):")
_ESCAPED = late(r"Traceback \(most recent call last\):\\n.*?(?=(?<!\\)\"|$)")
_RECORDED = late(
    r'\s*"message": "(?P<said>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Empty|Timeout|Warning)\b.*?)",?$'
)
_DICT = late(r'"exc_type": ?"(?P<name>\w[\w.]*)", ?"exc_value": ?"(?P<said>[^"]*)"')
_ERROR_HANDLER = late(r"[EWI]\d{4} .{0,200}?error_handler\.py:\d+\] ?")


_MARKS = (*"╭┏╔┌", "Exception Group", "> File ", "call last):\\n", '"exc_type"', '"message"', "error_handler.py")
"""Texts without any of these have no style."""


def has_styles(text: str) -> bool:
    """Whether `unwrapped` may change the lines of a text."""
    return any(mark in text for mark in _MARKS)


def unwrapped(lines: Sequence[str]) -> list[str]:
    """The lines of one process, with tracebacks and messages as Python prints them."""
    return list(_without_groups(_without_boxes([one for line in lines for one in _records(line)])))


def _records(line: str) -> list[str]:
    """The lines in a record in JSON or logfmt, whose text has escaped line feeds."""
    if line.startswith("> File "):  # loguru marks the frame that caught the exception
        return ["  " + line[2:]]
    if '"' not in line:
        return [line]
    if line[:1] in "EWI" and (handled := _ERROR_HANDLER.match(line)):
        line = line[handled.end() :]
    if escaped := _ESCAPED.search(line):
        text = escaped[0].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
        return [line[: escaped.start()].rstrip(' "'), *text.split("\n")]
    if '"exc_type"' in line and (value := _DICT.search(line)):
        return [line, f"{value['name']}: {value['said']}"]
    recorded = _RECORDED.match(line)
    return [recorded["said"].replace('\\"', '"')] if recorded else [line]


def _without_boxes(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        box = _BOX.match(lines[at])
        within = range(at + 1, min(at + MAX_BOX, len(lines))) if box else ()
        end = next((one for one in within if _BOX_END.match(lines[one])), None)
        if box is None or end is None:
            yield lines[at]
            at += 1
            continue
        inside = [found["text"] for line in lines[at + 1 : end] if (found := _BOX_LINE.match(line))]
        at = end + 1
        if "Traceback" not in box["title"]:
            title = box["title"].strip("─━═ ╮┓╗┐")
            yield f"{title}: {' '.join(text.strip() for text in inside if text.strip(' ─'))}"
            continue
        yield HEADER
        yield from _frames(inside)
        if at < len(lines) and lines[at].strip():  # rich has broken the message at the width of the terminal
            said = lines[at].strip()
            while (
                len(lines[at].rstrip()) >= _FULL_LINE
                and at + 1 < len(lines)
                and lines[at + 1][:1].isalnum()
                and "%|" not in lines[at + 1]
            ):
                at += 1
                said += f" {lines[at].strip()}"
            yield said
            at += 1


def _frames(inside: list[str]) -> Iterator[str]:
    for text in inside:
        if frame := _BOX_FRAME.match(text):
            yield f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}'
        elif code := _BOX_CODE.match(text):
            yield f"    {code['code'].strip()}"


def _without_groups(lines: Iterator[str]) -> Iterator[str]:
    inside = begins = False
    for line in lines:
        if begins and (found := _GROUP_LINE.match(line)) and "Traceback" not in line and not _GROUP_RULE.match(line):
            yield HEADER  # a member that was never raised
        begins = False
        if _GROUP_HEADER.match(line):
            inside = True
            yield HEADER
        elif not inside:
            yield line
        elif _GROUP_RULE.match(line):
            if line.rstrip().endswith("- ") or re.search(r"\d", line):
                begins = True
                yield MEMBER
        elif found := _GROUP_LINE.match(line):
            yield line[found.end() :]
        else:
            inside = False
            yield line
