"""Removes everything but text and SGR colours from foreign output before it reaches a terminal. Stored bytes stay unchanged; these
functions are applied where text is shown. Only this module defines control sequences."""

import re

SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<parameters>[0-?]{0,128})[ -/]{0,16}(?P<final>[@-~]?)"  # CSI, complete or cut short
    # OSC, DCS, SOS, PM, APC with their payload if it is terminated; otherwise only the opening, so that no text is lost.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])(?:[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c))?"
    r"|\x1b[ -/]{0,16}[0-~]?"  # every other escape
)

UNFIT = re.compile(
    "["
    "\x00-\x07\x0a-\x1f\x7f-\x9f"  # C0, DEL, C1; the layout of the text handles backspace and tab
    "\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # soft hyphen, zero width, separators, bidi controls
    "\ufe00-\ufe0f\ufeff\ufff9-\ufffb"  # variation selectors change a width that terminals disagree on
    "\U000e0000-\U000e0fff"  # tags: invisible text
    "]"
)

SURROGATE = re.compile("[\ud800-\udfff]")
_SGR = re.compile(r"[0-9;:]*")
_RESET = "\x1b[0m"


def decoded(data: bytes | str) -> str:
    """The text, without surrogates, so that it can be encoded again."""
    if isinstance(data, bytes):
        return data.decode("utf-8", "replace")
    return data if data.isascii() else SURROGATE.sub("\ufffd", data)


def visible(text: str) -> str:
    """The text with unprintable characters as escapes, `\\x1b`."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def terminal_line(data: bytes | str, *, colour: bool = True) -> str:
    """One line that is safe to print to a terminal. `data`: foreign text without its line feed. Text that a carriage return overwrites is
    removed. `colour`: keeps SGR sequences, and resets colours at the end of the line."""
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
