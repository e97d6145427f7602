"""What may reach a terminal of what ranks and users wrote: text and, where wanted, SGR colours. Nothing else.

Stored bytes stay as they are; this is applied once, where they are shown. The patterns are the one place that says what a
control sequence is.
"""

from __future__ import annotations

import re

SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<parameters>[0-?]{0,128})[ -/]{0,16}(?P<final>[@-~]?)"  # CSI, complete or cut short
    # OSC, DCS, SOS, PM, APC with their payload, where they end; else only what opens them: text is never swallowed.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])(?:[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c))?"
    r"|\x1b[ -/]{0,16}[0-~]?"  # every other escape
)

UNFIT = re.compile(
    "["
    "\x00-\x07\x0a-\x1f\x7f-\x9f"  # C0, DEL, C1; backspace and tab are dealt with by whoever lays text out
    "\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # soft hyphen, zero width, separators, bidi controls
    "\ufe00-\ufe0f\ufeff\ufff9-\ufffb"  # variation selectors change a width that terminals disagree on
    "\U000e0000-\U000e0fff"  # tags: invisible text
    "]"
)

SURROGATE = re.compile("[\ud800-\udfff]")
_SGR = re.compile(r"[0-9;:]*")
_RESET = "\x1b[0m"


def decoded(data: bytes | str) -> str:
    """Text that can be encoded again, whatever came in."""
    if isinstance(data, bytes):
        return data.decode("utf-8", "replace")
    return data if data.isascii() else SURROGATE.sub("\ufffd", data)


def visible(text: str) -> str:
    """Text in which nothing is missing: what can't be printed stands there as its escape, `\\x1b`."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def terminal_line(data: bytes | str, *, colour: bool = True) -> str:
    """One line that is safe to print to a terminal.

    Args:
        data: what somebody wrote, without its line feed. Of what a carriage return overwrote, nothing is kept.
        colour: keeps SGR sequences and ends them at the end of the line.
    """
    text = decoded(data)
    if text.isascii() and text.isprintable():
        return text
    parts = [part for part in re.split(r"[\r\n]", text) if part.strip()]
    line, coloured = parts[-1] if parts else "", False
    pieces, begin = [], 0
    for match in SEQUENCE.finditer(line):
        pieces.append(UNFIT.sub("", line[begin : match.start()]))
        begin = match.end()
        if colour and match["final"] == "m" and _SGR.fullmatch(match["parameters"]):
            pieces.append(f"\x1b[{match['parameters']}m")
            coloured = True
    pieces.append(UNFIT.sub("", line[begin:]))
    return "".join(pieces).replace("\b", "") + (_RESET if coloured else "")
