"""Finds metrics in the output of ranks, so that unchanged scripts get curves.

Whole chunks are searched, not single lines: each pattern begins with a literal (`loss`, `/s`, `step`), which the regex engine finds very
fast, and reads a bounded piece of text around it. So the cost is linear in the size of the output, and lines without metrics cost nearly
nothing.

Of several values of a key in a line, the first counts; the user's own patterns win over the built-in ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from engine.core.metrics.line_flood import thin

MAX_LINE = 65_536
"""Bytes of an unfinished line that are kept; a longer line is skipped."""

MAX_STEP = 1e15
"""Largest step: more comes from a wrong pattern, and is not exact as a float."""


class Reading(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One value that a rank printed.

    `key`: `loss`, `val_loss`, `lr`, `grad_norm`; `it/s`, `samples/s`, `tokens/s`; `steps`, the total number of steps, when it changes;
    `step`, for a line with only a step; or a group of a user's pattern. `step`: of the same line, or None.
    """

    key: str
    step: int | None
    value: float


Hit = tuple[int, str, float, bool]
"""Position of a value, its key, the value, and whether a user's pattern found it."""

Find = Callable[[re.Pattern[bytes], bytes], Iterable[Hit]]
"""Finds every value of a user's pattern in whole lines."""

# --- numbers ---------------------------------------------------------------------------------------------------------

_NUMBER = (
    rb"[-+]?(?:(?:(?:\d{1,3}(?:,\d{3}){1,6}(?![\d,])|\d{1,40}+)(?:\.\d{0,40}+)?|\.\d{1,40}+)(?:e[-+]?\d{1,4}+)?"
    rb"|nan|inf(?:inity)?)"
)
_ENDS = rb"(?![\w%])"
_IS = rb"""(?=[ \t=:'"|>-])['"]?[ \t]{0,16}+(?:->|[=:|])?[ \t]{0,16}+['"(\[]?(?:tensor\()?"""
"""Between a name and its value: `=`, `: `, a space, `': '`, `=tensor(`."""

_MULTIPLES = {b"": 1.0, b"k": 1e3, b"m": 1e6, b"g": 1e9}
_LEADING_NUMBER = re.compile(rb"""[\s'"(\[=:]{0,16}(""" + _NUMBER + rb")([kmg]?)(?![a-z0-9])")
_CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-?]*+[ -/]*+[@-~]")


def _number(text: bytes, multiple: bytes = b"") -> float:
    """The value of a match of `_NUMBER`."""
    value = float(text.replace(b",", b"") if b"," in text else text)
    return value * _MULTIPLES[multiple] if multiple else value


# --- names followed by a value ---------------------------------------------------------------------------------------
# The searched text is in lower case. Each pattern begins with a literal, and look-behinds come after it: a regex that begins
# with a look-behind is searched byte by byte.


def _after(literal: bytes, *words: bytes) -> bytes:
    """Look-behinds: one of these words is before the literal that was just matched."""
    return b"|".join(rb"(?<=(?<![a-z0-9])" + word + literal + rb")" for word in words)


_LOSS = re.compile(
    rb"loss(?:(?<![a-z0-9_-]loss)|"
    + _after(
        rb"[_-]loss",
        *(rb"train", rb"training", rb"val", rb"valid", rb"validation", rb"eval", rb"evaluation", rb"test", rb"dev"),
        *(rb"total", rb"avg", rb"average", rb"mean", rb"batch", rb"running", rb"smooth", rb"lm", rb"mlm", rb"ce"),
    )
    + rb")(?:_step)?"
    + _IS
    + rb"("
    + _NUMBER
    + rb")"
    + _ENDS
)
_DATA_BEFORE = re.compile(
    rb"(?<![a-z0-9])(?:train(?:ing)?|(val|valid|validation|eval|evaluation|test|dev)(?:[ _](?:avg|average|mean))?)"
    rb"[ _/.-]\Z"
)
_HELD_OUT_LINE = re.compile(rb"[ \t\[]*(?:val|valid|validation|eval|evaluation|test|testing|dev)(?![\w./-]|[ ]loss)")
"""Beginning of a line about held-out data: `Test set: Average loss: 0.05`."""

_NAMED = tuple(
    (key, re.compile(literal + rb"(?:(?<![a-z0-9_]" + literal + rb")|(?<=train[_/]" + literal + rb"))" + shape))
    for key, literal, shape in (
        ("lr", rb"lr", _IS + rb"(" + _NUMBER + rb")" + _ENDS),
        ("lr", rb"learning[ _]rate", _IS + rb"(" + _NUMBER + rb")" + _ENDS),
        ("grad_norm", rb"grad[ _]norm", _IS + rb"(" + _NUMBER + rb")" + _ENDS),
        ("tokens/s", rb"tps", _IS + rb"(" + _NUMBER + rb")" + _ENDS),
    )
)

# --- steps -----------------------------------------------------------------------------------------------------------

_COUNT = rb"(\d{1,3}(?:,\d{3}){1,3}(?![\d,])|\d{1,12}+)(?!\d|\.\d|[\w%])"
_STEPS = tuple(
    re.compile(
        literal
        + rb"(?:(?<![a-z0-9_/]"
        + literal
        + rb")(?<!per "
        + literal
        + rb")|"
        + _after(rb"[_/]" + literal, rb"global", rb"train", rb"training", rb"opt", rb"optimizer", rb"current")
        + rb"|"
        + _after(rb"[ _]" + literal + rb"(?=i?o?n?s)", rb"max", rb"num", rb"total", rb"train")
        + rb")"
        + rest
        + rb"(s?)(?:\(train\))?(?=[ \t=:#'\"\[])['\"]?[ \t]{0,16}+[=:]?[ \t]{0,16}+['\"(\[#]?[ \t]{0,16}+"
        + _COUNT
        + rb"(?:[ \t]{0,16}+(?:/|of)[ \t]{0,16}+"
        + _COUNT
        + rb")?"
    )
    for literal, rest in ((rb"step", rb""), (rb"iter", rb"(?:ation)?"))
)
_IN_ALL = re.compile(rb"(?:(?<![a-z0-9])(?:max|num|total|train|optimization)[ _]|[\n({,'\"][ \t]?['\"]?)\Z")
"""Before `steps=1000` if that is the total number of steps, and not of warm-up or accumulation."""

_BAR = re.compile(rb"\[(?:\d{1,4}:)?\d{2,3}:\d\d[<,]")
"""tqdm: `12/100 [00:01<00:09, …`, or `12it [00:01, …` without a known end."""
_BEFORE_BAR = re.compile(rb"(?<![\d.])(\d{1,12})(?:/(\d{1,12})|it) \Z")
_BAR_STEP = "12/100 ["
"""Key of a progress bar's step, which counts if the line has no other. No group of a pattern can have this name."""

# --- rates -----------------------------------------------------------------------------------------------------------

_UNITS = {
    **dict.fromkeys((b"it", b"its", b"iter", b"iters", b"iteration", b"iterations", b"step", b"steps"), "it/s"),
    **dict.fromkeys((b"batch", b"batches"), "it/s"),
    **dict.fromkeys((b"sample", b"samples", b"seq", b"seqs", b"sequences", b"example", b"examples"), "samples/s"),
    **dict.fromkeys((b"img", b"imgs", b"image", b"images"), "samples/s"),
    **dict.fromkeys((b"token", b"tokens", b"tok", b"toks"), "tokens/s"),
}
_RATE_WORDS = {
    prefix + unit: (key, multiple)
    for unit, key in _UNITS.items()
    for prefix, multiple in (
        *((prefix, b"") for prefix in (b"", b"train_", b"training_", b"avg_", b"mean_", b"global_")),
        *((suffix, suffix) for suffix in _MULTIPLES if suffix),
    )
}
"""Words before `/s`, with key and multiple: `tokens`, `train_samples`, and `ktok` of `2.3ktok/s`, whose number is multiplied by 1000."""
_RATES = tuple(
    re.compile(
        per
        + rb"s(?:ec(?:ond)?)?(?![a-z0-9_])(?:(?=[ \t=:'\"|])['\"]?[ \t]{0,8}+([=:|])?[ \t]{0,16}+['\"]?("
        + _NUMBER
        + rb")[ \t]?([kmg]?)"
        + _ENDS
        + rb"(?![ \t]?[a-z]+/s))?"
    )
    for per in (rb"/", rb"per[ _]")
)
_PACE = re.compile(rb"s/(?:it|iter|step|batch)(?![a-z0-9_])")
"""Seconds for one step: `1.52s/it`, `24ms/step`."""
_PLAIN_NUMBER = re.compile(_NUMBER + rb"\Z")
_REACH = 64
"""Bytes before a unit that are searched for its number."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz_"
_IN_NUMBERS = b"0123456789.,e+-"
_BLANK = b" \t"


class MetricReader:
    """Finds readings in the output of one rank, chunk by chunk.

    Args:
        patterns: regexes of the profile. Each named group is a metric of that name, except `step`, the step of the line.
        find: searches with one of them, and may limit what that costs; None: without a limit.
    """

    def __init__(self, patterns: tuple[str, ...] = (), find: Find | None = None) -> None:
        self._find = find or own_hits
        self._patterns = tuple(re.compile(pattern.encode(), re.MULTILINE) for pattern in patterns)
        self._unfinished = bytearray()
        self._giving_up = False
        self._steps: float | None = None

    def feed(self, data: bytes) -> list[Reading]:
        """Reads the next bytes of the output.

        Args:
            data: any bytes. A line ends with `\\n` or, in progress bars, with `\\r`; an unfinished line is kept for the next call.

        Returns:
            The readings of all finished lines, in order.
        """
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end:
            self._keep(data)
            return []
        begin = 0
        if self._giving_up:
            begin = min(at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0)
            self._giving_up = False
        text = bytes(self._unfinished) + data[begin:end]
        self._unfinished.clear()
        self._keep(data[end:])
        return self._read(text)

    def _keep(self, data: bytes) -> None:
        """Keeps an unfinished line, up to `MAX_LINE` bytes."""
        if self._giving_up or len(self._unfinished) + len(data) > MAX_LINE:
            self._giving_up = True
            self._unfinished.clear()
        else:
            self._unfinished += data

    def _read(self, text: bytes) -> list[Reading]:
        """Reads whole lines: finds all values, then groups them by line."""
        if b"\x1b" in text:
            text = _CONTROL_SEQUENCE.sub(b"", text)
        if b"\r" in text:
            text = text.replace(b"\r", b"\n")
        text = thin(text, self._metrics_of)
        hits = self._hits(text)
        readings: list[Reading] = []
        if not hits:
            return readings
        line: dict[str, float] = {}
        own: dict[str, float] = {}
        end = -1
        for position, key, value, is_own in hits:
            if position > end:
                self._take_line(line | own if own else line, readings)
                line, own = {}, {}
                end = text.find(b"\n", position)
            if is_own:
                own.setdefault(key, value)
            line.setdefault(key, value)
        self._take_line(line | own, readings)
        return readings

    def _hits(self, text: bytes) -> list[Hit]:
        """Every value in whole lines, by position."""
        hits = _known_hits(text.lower())
        for pattern in self._patterns:
            hits += self._find(pattern, text)
        hits.sort()
        return hits

    def _metrics_of(self, line: bytes) -> list[tuple[str, float]]:
        """The metrics of a line without steps."""
        return [(key, value) for _, key, value, _ in self._hits(line) if key not in ("step", "steps", _BAR_STEP)]

    def _take_line(self, line: dict[str, float], readings: list[Reading]) -> None:
        """Adds the readings of one line, given its values by key."""
        bar = line.pop(_BAR_STEP, None)
        told = line.pop("step", bar)
        step = int(told) if told is not None and 0 <= told <= MAX_STEP else None
        steps = line.pop("steps", None)
        if steps is not None and steps != self._steps:
            self._steps = steps
            readings.append(Reading("steps", step, steps))
        if line:
            for key, value in line.items():
                readings.append(Reading(key, step, value))
        elif step is not None:
            readings.append(Reading("step", step, float(step)))


def _known_hits(text: bytes) -> list[Hit]:
    """Every value of a built-in pattern, in lower-case text."""
    hits: list[Hit] = []
    if b"loss" in text:
        _find_losses(text, hits)
    for pattern in _STEPS:
        _find_steps(pattern, text, hits)
    if b"[" in text:
        _find_bars(text, hits)
    for pattern in _RATES:
        _find_rates(pattern, text, hits)
    for found in _PACE.finditer(text):
        number, milli = _number_before(text[max(0, found.start() - _REACH) : found.start()], b"m")
        if number and (seconds := _number(number) * (1e-3 if milli else 1.0)) > 0:
            hits.append((found.start(), "it/s", 1.0 / seconds, False))
    for key, pattern in _NAMED:
        hits += [(found.start(), key, _number(found[1]), False) for found in pattern.finditer(text)]
    return hits


def _find_losses(text: bytes, hits: list[Hit]) -> None:
    about_held_out = b"val" in text or b"test" in text or b"dev" in text
    for found in _LOSS.finditer(text):
        begin = found.start()
        held_out = about_held_out and _is_held_out(text, begin)
        hits.append((begin, "val_loss" if held_out else "loss", _number(found[1]), False))


def _is_held_out(text: bytes, begin: int) -> bool:
    """Whether the loss at this position is of held-out data."""
    named = _DATA_BEFORE.search(text, max(0, begin - _REACH), begin)
    if named is not None:
        return named[1] is not None
    return _HELD_OUT_LINE.match(text, text.rfind(b"\n", 0, begin) + 1) is not None


def _find_steps(pattern: re.Pattern[bytes], text: bytes, hits: list[Hit]) -> None:
    for found in pattern.finditer(text):
        plural, count, total = found.groups()
        begin = found.start()
        if total is not None:
            hits.append((begin, "step", _number(count), False))
            hits.append((begin, "steps", _number(total), False))
        elif not plural:
            hits.append((begin, "step", _number(count), False))
        elif begin == 0 or _IN_ALL.search(text, max(0, begin - _REACH), begin):
            hits.append((begin, "steps", _number(count), False))


def _find_bars(text: bytes, hits: list[Hit]) -> None:
    for found in _BAR.finditer(text):
        before = _BEFORE_BAR.search(text, max(0, found.start() - _REACH), found.start())
        if before is not None:
            hits.append((before.start(), _BAR_STEP, float(before[1]), False))
            if before[2] is not None:
                hits.append((before.start(), "steps", float(before[2]), False))


def _find_rates(pattern: re.Pattern[bytes], text: bytes, hits: list[Hit]) -> None:
    """Rates with the number before (`812 tokens/s`) or after (`tokens/s: 812`, `loss 2.3 tokens/s 812`).

    The text before is split from its end with `rstrip`: a regex would try every byte as a beginning.
    """
    for found in pattern.finditer(text):
        begin = found.start()
        before = text[max(0, begin - _REACH) : begin].rstrip(b" _")
        rest = before.rstrip(_LETTERS)
        known = _RATE_WORDS.get(before[len(rest) :])
        if known is None:
            continue
        key, multiple = known
        number, apart = _number_before(rest, b"kmg")
        sign, behind, behind_multiple = found.groups()
        if behind is not None and (sign is not None or not number or _is_named(rest, number)):
            hits.append((begin, key, _number(behind, behind_multiple), False))
        elif number:
            hits.append((begin, key, _number(number, multiple or apart), False))


def _number_before(text: bytes, suffixes: bytes) -> tuple[bytes, bytes]:
    """The number at the end of a text, and the one-letter suffix after it; both empty if there is no number."""
    text = text.rstrip(_BLANK)
    suffix = text[-1:] if text[-1:] in suffixes else b""
    text = text[: len(text) - len(suffix)]
    number = text[len(text.rstrip(_IN_NUMBERS)) :].lstrip(b",")
    return (number, suffix) if _PLAIN_NUMBER.match(number) else (b"", b"")


def _is_named(text: bytes, number: bytes) -> bool:
    """Whether the number at the end of a text belongs to a name before it: `loss 2.3`."""
    before = text[: text.rindex(number)]
    name = before.rstrip(b" \t=:")
    return name != before and name[-1:].isalpha()


def own_hits(pattern: re.Pattern[bytes], text: bytes) -> Iterator[Hit]:
    """Every value of a user's pattern."""
    for found in pattern.finditer(text):
        for key in pattern.groupindex:
            value = found[key]
            if value is not None and (number := _LEADING_NUMBER.match(value.lower())):
                yield found.start(key), key, _number(*number.groups()), True
