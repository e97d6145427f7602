"""Reads a line of output into fields: each number with its name and its unit, and `i/N` as one count. The fields of a line say nothing
yet about what they mean; `meaning` decides that. A line is read once for all lines of the same format: see `formats`."""

import re
from typing import NamedTuple

from engine.core.metrics.lines.patterns import P

MAX_NUMBERS = 200  # numbers of a line that are read; a longer line is data, not a report
MAX_TEXT = 4096  # characters of a line that are read; if it is longer, its beginning and its end
_REACH = 64  # characters before a number that are searched for its name

NUMBER = P.number.pattern

HIDDEN = "\x01"  # stands for each character of a text that holds digits but no value, such as a date


class Field(NamedTuple):
    """One number of a line, or the two of an `i/N`."""

    name: str  # words before the number, as printed: `lm loss`; empty: none
    unit: str  # after the number, in lower case: `ms`, `%`, `tokens/s`; `x per second` is `x/s`
    signed: bool  # whether a sign such as `=` or `:` is between the name and the number
    opened: str  # brackets and quotes between the name and the number
    number: int  # place of the number among those of the line
    total: int | None  # place of the second number of an `i/N`
    begin: int  # where the number begins in the text
    end: int  # where the number or the `i/N` ends, with its unit


class Numbers(NamedTuple):
    """The numbers of a line in order, and the text between them."""

    texts: list[str]  # without signs between thousands; with a point as decimal sign
    begins: list[int]
    factors: list[float]  # multiples of those with a letter: 1000 of `40k`


class Fields(NamedTuple):
    """A line in parts. `text`: without control sequences, with `HIDDEN` in place of dates and similar."""

    text: str
    fields: list[Field]
    numbers: Numbers


def hide(text: str) -> str:
    """The text with dates, times, versions, addresses, paths and shapes replaced by `HIDDEN`, character by character."""
    return P.hidden_text.sub(lambda found: HIDDEN * len(found[0]), text)


def read_fields(text: str) -> Fields:
    """The fields of a line, in order."""
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]} {HIDDEN} {text[-MAX_TEXT // 2 :]}"
    text = hide(text)
    if '"value"' in text:
        text = P.key_value.sub(lambda found: f"{found[1]}:".ljust(len(found[0])), text)
    numbers, found = _numbers_of(text)
    fields: list[Field] = []
    place = 0
    while place < len(found):
        begin, stop, unit, before = found[place]
        total = place + 1 if _is_count(numbers, found, place) else None
        if total is not None:
            _, stop, unit, _ = found[total]
        name = P.name.search(before)
        is_plain = total is None and not unit and numbers.texts[place].isdecimal()
        if name and name["sign"] and is_plain and P.key.match(text, stop):
            name = None
        behind = None if name else P.loss_behind.match(text, stop)
        late = P.moment.match(fields[-1].name) if fields and before.lstrip(")").strip() in (":", "=", "is") else None
        fields.append(
            Field(
                late["name"] if late else name["name"].strip() if name else behind[1] if behind else "",
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
    return Fields(text, fields, numbers)


class _Found(NamedTuple):
    begin: int
    end: int  # with the unit
    unit: str
    before: str  # at most `_REACH` characters, from the end of the number before it


def _numbers_of(text: str) -> tuple[Numbers, list[_Found]]:
    """The numbers of a line, and where each of them stands."""
    has_locale = "," in text and P.decimal_comma.search(text) is not None and not P.decimal_point.search(text)
    texts, begins, factors = numbers = Numbers([], [], [])
    found: list[_Found] = []
    end = 0
    for token in (P.token_of_locale if has_locale else P.token).finditer(text):
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
        found.append(_Found(begin, stop, unit, before))
        end = stop
        if len(texts) == MAX_NUMBERS:
            break
    return numbers, found


def _is_count(numbers: Numbers, found: list[_Found], place: int) -> bool:
    """Whether a number and the next one are an `i/N`."""
    if place + 1 == len(found) or not P.count_link.match(found[place + 1].before):
        return False
    unit, factor = found[place].unit, numbers.factors[place]
    return (
        unit in _COUNT_UNITS
        and (factor != 1.0 or unit in ("", "it"))
        and is_whole(numbers.texts[place], factor)
        and is_whole(numbers.texts[place + 1], numbers.factors[place + 1])
    )


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
    found = P.number_behind.match(text, stop)
    return found is not None and (found["sign"] is not None or P.name.search(before) is not None)


def _unit(text: str, token: re.Match[str]) -> tuple[str | None, int]:
    """The unit after a number and where it ends; None: the number is a part of a word, such as `7b-chat`."""
    unit = token["unit"]
    if unit is None:
        return "", token.end("number")
    lower = unit.lower()
    if per := P.per_second.match(text, token.end("number")):
        return f"{per[1].lower()}/s", per.end()
    if lower in MULTIPLES and (rate := P.rate_behind.match(text, token.end())):  # `2.5k tok/s`
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
_RATES = {"it/s": _STEPS, "samples/s": _SAMPLES, "tokens/s": _TOKENS}
RATE_KEYS = {unit: key for key, units in _RATES.items() for unit in units.split()}
"""Keys of rates, by the counted unit."""
OF_DEVICE = "/device"  # behind the key of a rate of one GPU

SECONDS = dict.fromkeys("s sec secs second seconds".split(), 1.0) | {"ms": 1e-3, "msec": 1e-3, "us": 1e-6, "µs": 1e-6}
MULTIPLES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_COUNT_UNITS = MULTIPLES | {"it": 1.0, "kit": 1e3, "mit": 1e6}  # letters behind the numbers of a count


def is_unit(word: str) -> bool:
    """Whether a word in lower case is a unit when it stands after a number."""
    return (
        word in SECONDS
        or word in ("%", "k", "m", "g", "it", "x", "h", "min", "mins", "epochs", "batches")
        or "/" in word
        or P.size.match(word) is not None
    )


def rate_of_unit(unit: str) -> tuple[str, float] | None:
    """Key and multiple of a rate in lower case: `ktok/s` is `("tokens/s", 1000)`; None: not a rate of training."""
    found = P.rate.match(unit)
    if found is None:
        return None
    prefix, word, device = found[1], found[2] or "", OF_DEVICE if found[3] else ""
    if prefix + word in RATE_KEYS:
        return RATE_KEYS[prefix + word] + device, 1.0
    if word in RATE_KEYS:
        return RATE_KEYS[word] + device, MULTIPLES[prefix]
    return (f"samples/s{device}", 1.0) if not prefix and not word else None


def pace_of_unit(unit: str) -> float | None:
    """Seconds in one unit of `ms/step` or `s/it`; None: not a time for one step."""
    found = P.pace.match(unit)
    return SECONDS[found[1]] if found and found[2] in _STEPS.split() else None


def is_size(unit: str) -> bool:
    """Whether a unit counts bytes or operations: `MB`, `GiB/s`, `TFLOPs`."""
    return P.size.match(unit) is not None
