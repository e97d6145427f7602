"""Reads a line of output into fields: each number with its name and its unit, and `i/N` as one count.

The fields of a line say nothing yet about what they mean; `line_meaning` decides that. A line is read once for all lines of the same
format: see `line_formats`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_NUMBERS = 200
"""Numbers of a line that are read; a longer line is data, not a report."""

MAX_TEXT = 4096
"""Characters of a line that are read: of a longer one the beginning and the end."""

_REACH = 64
"""Characters before a number that are searched for its name."""

_GROUPED = r"\d{1,3}(?:(?:,\d{3}){1,6}(?!\d|,\d)|(?:_\d{3}){1,6}(?![\d_]))"
_REST = (
    r"(?:e[-+]?\d{1,4}+(?!\d))?"
    r"|(?:nan|inf(?:inity)?)(?!\w| (?:in|of|at|for|or|and|values?|detected|found|encountered|loss|gradients?)\b))"
)
NUMBER = rf"[-+]?(?:(?:(?:{_GROUPED}|\d{{1,40}}+)(?:\.\d{{0,40}}+)?|\.\d{{1,40}}+){_REST}"
_NUMBER_OF_LOCALE = rf"[-+]?(?:\d{{1,40}}+(?:,\d{{1,40}}+)?{_REST}"
"""A number where the comma is the decimal sign."""

_DECIMAL_COMMA = re.compile(r"(?<![\d,.\[(])(?:(?=0,|\d{4})\d{1,15},\d+|\d{1,15},(?:\d\d?|\d{4,}))(?![\d,.\])])")
"""A comma that can only be a decimal sign: `0,125`, `2,31`."""
_DECIMAL_POINT = re.compile(r"\d\.\d|\d,\d{3},\d")

HIDDEN = "\x01"
"""Stands for each character of a text that holds digits but no value, such as a date."""

_FILE_ENDS = (
    "pt pth ckpt py bin json jsonl txt safetensors npz npy csv tar gz zip yaml yml h5 onnx log c cc cpp cu cuh h hh so whl png jpg"
).split()

_ENDS_BY_LENGTH = [
    rf"(?<=\.(?:{'|'.join(end for end in _FILE_ENDS if len(end) == length)}))"
    for length in sorted({len(end) for end in _FILE_ENDS})
]
"""One look behind for all ends of a length: it must have a fixed width."""

_HIDDEN_TEXT = re.compile(
    r"\d{4}[-/.]\d\d[-/.]\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?"  # 2024-05-01 12:00:00,123
    r"|\b\d{1,2}/\d{1,2}/\d{4}\b|\b\d\d/\d\d(?= \d\d:\d\d)"  # 05/01/2024, 05/01 12:00:00
    r"|\d{1,6}(?::\d\d){1,2}(?:[.,]\d{1,9})?(?!\d)|\d+ days?, "  # 12:00:00.123
    r"|(?<![\w.])v?\d{1,9}(?:\.\d{1,9}){2,}[\w.+-]{0,40}"  # 2.6.0+cu124, 10.0.0.1
    r"|\bhttps?://\S{1,500}"
    r"|(?<![\w\])}/~])(?:\.{1,2}|~)?/(?=[A-Za-z_.])[^\s,;:'\")\]|]{1,500}"  # /data/run_3/step_100
    r"|(?<![\w=./+-])[\w=/+-]{0,200}+\.[\w=./+-]{1,200}+(?:" + "|".join(_ENDS_BY_LENGTH) + r")(?::\d+)?"
    r"|\((?:\d{1,9}, ?){1,12}\d{0,9}\)|\[(?:\d{1,9}, ?){2,12}\d{1,9}\]|Size\(\[[\d, ]{0,80}\]\)"  # shapes
    r"|\b0x[0-9a-f]{1,32}\b"
    r"|(?<![\w.])[A-Za-z_][\w.]{0,100}(?::[A-Za-z_<][\w.<>]{0,100}|(?<=\w)\.\w{1,60}):\d{1,6}(?= - )"  # loguru: __main__:train:42
)

_TOKEN, _TOKEN_OF_LOCALE = (
    re.compile(
        rf"(?P<number>{number})(?P<apart>[ \t]?)(?P<unit>%|[A-Za-zµ][\w]{{0,30}}(?:/[A-Za-z]\w{{0,20}})*|/s(?:ec)?\b|/\?)?"
        r"|[A-Za-z_\x01][\w@\x01]{0,100}+(?:[./%-]+[\w@]{1,100}+){0,12}+",
        re.IGNORECASE,
    )
    for number in (NUMBER, _NUMBER_OF_LOCALE)
)

_PER_SECOND = re.compile(r" ?([A-Za-z]{1,20})[ _]per[ _]s(?:ec(?:ond)?)?\b", re.IGNORECASE)
"""After a number: ` tokens per second`."""

_NUMBER_BEHIND = re.compile(
    rf"[ \t]{{0,8}}(?P<sign>[=:])?[ \t]{{0,16}}{NUMBER}(?![ \t]?[a-z]+/s)(?![\w.])", re.IGNORECASE
)

_RATE_BEHIND = re.compile(r" ([a-z]{1,20})/s(?:ec)?\b", re.IGNORECASE)

_KEY_VALUE = re.compile(r"\"(?:key|name|tag|metric)\": ?(\"[\w./-]{1,60}\"), ?\"value\":")
"""MLPerf's `"key": "train_loss", "value": 0.45`."""

_LOSS_BEHIND = re.compile(r" ((?:avg|average|mean|total) loss)(?=[ \t]*(?:[,;|)\]]|\Z))", re.IGNORECASE)
"""After a number: `2.41 avg loss,`."""

_KEY = re.compile(r":[ \t]+[-+]?\d")
"""After a number with a sign before it: `Throughput: 0: 3086.4` has the throughput of part 0."""

_COUNT_LINK = re.compile(r"[ \t]{0,16}(?:/|of|out of)[ \t]{0,16}\Z")

_BOXES = r"(?:(?:torch\.)?tensor|(?:numpy|np)\.(?:float|int)\d{1,2}|array)\(\[?"
"""Around a value in a printed dictionary: `'loss': np.float32(2.3)`."""

_NAME = re.compile(
    r"(?<![A-Za-z_])(?P<name>[A-Za-z_][\w@./%+-]{0,60}(?:\([A-Za-z_/%]{1,16}\))?"
    r"(?: {1,2}(?!" + _BOXES + r")[A-Za-z_(][\w@./%+()-]{0,40}){0,5})"
    r"(?:['\"]?[ \t]{0,32}(?P<sign>->|[=:|>])|['\"]?(?=[ \t'\"(\[#]))[ \t]{0,24}(?P<open>['\"(\[#]{0,3})[ \t]{0,16}(?:"
    + _BOXES
    + r")?\Z",
    re.IGNORECASE,
)


_MOMENT = re.compile(r"(?P<name>.*?)[ \t]\(?(?:at|after|for|in|on)[ \t].*\Z", re.IGNORECASE)
"""`validation loss at iteration` before `100: 2.3`: the second number has the name of the first one up to its moment."""


class Field(NamedTuple):
    """One number of a line, or the two of an `i/N`."""

    name: str
    """Words before the number, as printed: `lm loss`; empty: none."""
    unit: str
    """After the number, in lower case: `ms`, `%`, `tokens/s`; `x per second` is `x/s`."""
    signed: bool
    """Whether a sign such as `=` or `:` is between the name and the number."""
    opened: str
    """Brackets and quotes between the name and the number."""
    number: int
    """Place of the number among those of the line."""
    total: int | None
    """Place of the second number of an `i/N`."""
    begin: int
    """Where the number begins in the text."""
    end: int
    """Where the number or the `i/N` ends, with its unit."""


class Numbers(NamedTuple):
    """The numbers of a line in order, and the text between them."""

    texts: list[str]
    """Without signs between thousands; with a point as decimal sign."""
    begins: list[int]
    factors: list[float]
    """Multiples of those with a letter: 1000 of `40k`."""


class Fields(NamedTuple):
    """A line in parts. `text`: without control sequences, with `HIDDEN` in place of dates and similar."""

    text: str
    fields: list[Field]
    numbers: Numbers


def hide(text: str) -> str:
    """The text with dates, times, versions, addresses, paths and shapes replaced by `HIDDEN`, character by character."""
    return _HIDDEN_TEXT.sub(lambda found: HIDDEN * len(found[0]), text)


def read_fields(text: str) -> Fields:
    """The fields of a line, in order.

    Args:
        text: one line.
    """
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]} {HIDDEN} {text[-MAX_TEXT // 2 :]}"
    text = hide(text)
    if '"value"' in text:
        text = _KEY_VALUE.sub(lambda found: f"{found[1]}:".ljust(len(found[0])), text)
    has_locale = "," in text and _DECIMAL_COMMA.search(text) is not None and not _DECIMAL_POINT.search(text)
    texts: list[str] = []
    begins: list[int] = []
    factors: list[float] = []
    found: list[tuple[int, int, str, str]] = []  # begin, end, unit, and text before
    end = 0
    for token in (_TOKEN_OF_LOCALE if has_locale else _TOKEN).finditer(text):
        number = token["number"]
        if number is None:
            continue
        begin = token.start()
        unit, stop = _unit(text, token)
        before = text[max(end, begin - _REACH) : begin]
        if unit and token["apart"] and (before.lower().endswith("loss ") or _names_next(text, stop, before)):
            unit, stop = "", token.end("number")
        if unit is None or (
            begin and (text[begin - 1].isalnum() or text[begin - 1] in "_@\x01") and number[0] not in "+-"
        ):
            continue
        if number[0] == "-" and begin and text[begin - 1].isalnum():
            continue  # `16-32`
        texts.append(number.replace(",", ".") if has_locale else number)
        begins.append(begin)
        factors.append(_COUNT_UNITS.get(unit, 1.0) if not token["apart"] and text[stop - 1] != "m" else 1.0)
        found.append((begin, stop, unit, before))
        end = stop
        if len(texts) == MAX_NUMBERS:
            break
    fields: list[Field] = []
    place = 0
    while place < len(found):
        begin, stop, unit, before = found[place]
        total = None
        if (
            place + 1 < len(found)
            and unit in _COUNT_UNITS
            and (factors[place] != 1.0 or unit in ("", "it"))
            and is_whole(texts[place], factors[place])
        ):
            after = found[place + 1]
            if _COUNT_LINK.match(after[3]) and is_whole(texts[place + 1], factors[place + 1]):
                total, stop, unit = place + 1, after[1], after[2]
        name = _NAME.search(before)
        if name and name["sign"] and total is None and not unit and _KEY.match(text, stop) and texts[place].isdecimal():
            name = None
        behind = None if name else _LOSS_BEHIND.match(text, stop)
        late = _MOMENT.match(fields[-1].name) if fields and before.lstrip(")").strip() in (":", "=") else None
        fields.append(
            Field(
                name["name"].strip() if name else behind[1] if behind else late["name"] if late else "",
                unit,
                bool(late or (name and name["sign"])),
                name["open"] if name else before[-8:].strip(),
                place,
                total,
                begin,
                stop,
            )
        )
        place += 1 if total is None else 2
    return Fields(text, fields, Numbers(texts, begins, factors))


def is_whole(text: str, factor: float = 1.0) -> bool:
    """Whether a number may be a count: `120`, `1,200`, `1_200`, `20.0`, `4.00e+01`, and with a factor `1.2`."""
    if text.isdecimal():
        return len(text) <= 15
    if len(text) > 20 or not text[0].isdecimal():
        return False
    value = float(text.replace(",", "").replace("_", ""))
    return factor != 1.0 or (
        value < 1e15 and value == int(value) and ("." not in text or "e" in text.lower() or text.endswith((".", ".0")))
    )


def _names_next(text: str, stop: int, before: str) -> bool:
    """Whether the word after a number is the name of the next one: `loss 2.5 tok/s 812`, `2.5 samples/s: 812`."""
    found = _NUMBER_BEHIND.match(text, stop)
    return found is not None and (found["sign"] is not None or _NAME.search(before) is not None)


def _unit(text: str, token: re.Match[str]) -> tuple[str | None, int]:
    """The unit after a number and where it ends; None: the number is a part of a word, such as `7b-chat`."""
    unit = token["unit"]
    if unit is None:
        return "", token.end("number")
    lower = unit.lower()
    if per := _PER_SECOND.match(text, token.end("number")):
        return f"{per[1].lower()}/s", per.end()
    if lower in MULTIPLES and (rate := _RATE_BEHIND.match(text, token.end())):  # `2.5k tok/s`
        return f"{lower}{rate[1].lower()}/s", rate.end()
    if token["apart"]:
        return (lower, token.end()) if is_unit(lower) else ("", token.end("number"))
    if is_unit(lower):
        return lower, token.end()
    if lower in ("of", "x") or unit[0] in "/|":
        return lower, token.end()
    return None, token.end()


# --- units -----------------------------------------------------------------------------------------------------------

_STEPS = "it its iter iters iteration iterations step steps batch batches ba update updates"
_SAMPLES = "sample samples seq seqs sequence sequences example examples img imgs image images sent sents frame frames video videos"
_TOKENS = "token tokens tok toks word words"
RATE_KEYS = {
    **dict.fromkeys(_STEPS.split(), "it/s"),
    **dict.fromkeys(_SAMPLES.split(), "samples/s"),
    **dict.fromkeys(_TOKENS.split(), "tokens/s"),
}
"""Keys of rates, by what is counted."""

STEP_WORDS = frozenset(_STEPS.split())
SECONDS = dict.fromkeys("s sec secs second seconds".split(), 1.0) | {"ms": 1e-3, "msec": 1e-3, "us": 1e-6, "µs": 1e-6}
MULTIPLES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_COUNT_UNITS = MULTIPLES | {"it": 1.0, "kit": 1e3, "mit": 1e6}
"""Letters behind the numbers of a count."""
_SIZE = re.compile(r"[kmgt]?i?b(?:ytes?)?(?:/s(?:ec)?)?\Z|bytes(?:/s)?\Z|[kmgtp]?flops?(?:/s)?(?:/gpu)?\Z")
_RATE = re.compile(r"([kmg]?)([a-z]{1,20})?/s(?:ec(?:ond)?s?)?(?:/gpu|/device|/proc)?\Z")
_PACE = re.compile(r"(s|sec|secs|ms|us|µs)/([a-z]{1,20})\Z")


def is_unit(word: str) -> bool:
    """Whether a word in lower case is a unit when it stands after a number."""
    return (
        word in SECONDS
        or word in ("%", "k", "m", "g", "it", "x", "h", "min", "mins", "epochs", "batches")
        or "/" in word
        or _SIZE.match(word) is not None
    )


def rate_of_unit(unit: str) -> tuple[str, float] | None:
    """Key and multiple of a rate: `ktok/s` is `("tokens/s", 1000)`; None: not a rate of training.

    Args:
        unit: in lower case.
    """
    found = _RATE.match(unit)
    if found is None:
        return None
    prefix, word = found[1], found[2] or ""
    if prefix + word in RATE_KEYS:
        return RATE_KEYS[prefix + word], 1.0
    if word in RATE_KEYS:
        return RATE_KEYS[word], MULTIPLES[prefix]
    return ("samples/s", 1.0) if not prefix and not word else None


def pace_of_unit(unit: str) -> float | None:
    """Seconds in one unit of `ms/step` or `s/it`; None: not a time for one step."""
    found = _PACE.match(unit)
    return SECONDS[found[1]] if found and found[2] in STEP_WORDS else None


def is_size(unit: str) -> bool:
    """Whether a unit counts bytes or operations: `MB`, `GiB/s`, `TFLOPs`."""
    return _SIZE.match(unit) is not None
