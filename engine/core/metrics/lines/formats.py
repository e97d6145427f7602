"""Reads lines of known formats by place, without a search. Programs print the same few formats again and again, and only the numbers
differ. The shape of a line is the line with each run of digits as one `0`. The first line of a shape is read field by field; a `Recipe`
then takes the values of the others by their place."""

import re
from bisect import bisect_right
from typing import NamedTuple, get_args

import msgspec

from engine.core.metrics.lines.fields import OF_DEVICE, RATE_KEYS, Fields, Numbers, read_fields
from engine.core.metrics.lines.meaning import Format, understand
from engine.core.metrics.lines.names import Names
from engine.core.metrics.lines.patterns import W, in_english
from engine.core.metrics.lines.tables import LONGEST, Section, Table, section_of, table_of

MAX_STEP = 1e15  # largest step: more comes from a wrong pattern, and is not exact as a float
MAX_SHAPES = 4096  # shapes that are remembered
MAX_SHAPE = 1000  # bytes of the longest shape that is remembered
_REMARK = b"rankdeck: "  # what rankdeck says in a rank, such as a lost peer and its step, begins so

_ANCHORS = frozenset(word.encode() for word in W.anchors | W.headings)
"""A line that reports something, or begins a section, has one of them, or `loss`, or `/s`."""

_LETTERS = bytes(byte + 32 if 65 <= byte <= 90 else byte if 97 <= byte <= 122 else 32 for byte in range(256))
_DIGITS_TO_ZERO = bytes(ord("0") if 48 <= byte <= 57 else byte for byte in range(256))
_TO_WORDS = bytes(byte if byte in b"0123456789." else 32 for byte in range(256))
MAIN = frozenset(
    ("loss", "val_loss", "lr", "grad_norm", *RATE_KEYS.values(), *(f"{key}{OF_DEVICE}" for key in RATE_KEYS.values()))
)
"""Metrics that need every line. For the other metrics, a few lines of many are enough."""

_WORD = re.compile(r"[0-9.]+")
_WORD_OF_LINE = re.compile(rb"[0-9.]+")


class Line(msgspec.Struct, frozen=True, gc=False):
    """The values in one line of output. `values`: metrics by key, in order; the rest: see `Format`."""

    format: Format
    values: dict[str, float] = {}
    step: int | None = None
    steps: int | None = None
    epoch: float | None = None
    epochs: int | None = None


class Source(NamedTuple):
    """How a number is made from the words of a line, which are its runs of digits and dots."""

    place: int  # the first word of the number; -1: there is none, and `factor` is the value, such as nan
    factor: float = 1.0
    inverted: bool = False
    joins: tuple[bytes, ...] = ()
    """Text between further words: none between thousands, `.` for a decimal comma, `e-` before an exponent."""

    @property
    def is_plain(self) -> bool:
        """Whether it is one word as it stands."""
        return self.place >= 0 and self.factor == 1.0 and not self.inverted and not self.joins


class Values(NamedTuple):
    """How the metrics of a line are read. `plain`: keys and words of all if they are plain numbers."""

    sources: tuple[tuple[str, Source], ...]
    plain: tuple[tuple[str, int], ...] | None


class Recipe(msgspec.Struct, frozen=True, gc=False):
    """How the lines of a shape are read. `main`: the values that are in `MAIN`."""

    format: Format
    step: Source | None
    steps: Source | None
    epoch: Source | None
    epochs: Source | None
    values: Values
    main: Values


class Heading(NamedTuple):
    """A line that begins a section. `is_object`: the section ends with a closing bracket."""

    section: Section
    is_object: bool = False


Known = Recipe | Table | Heading | str | None
"""How lines of a shape are read. None: they say nothing; a text: they are read field by field each time."""


def shapes_of(text: bytes) -> bytes:
    """The shapes of the lines of a text, with their line feeds."""
    shapes = text.translate(_DIGITS_TO_ZERO).replace(b"0000", b"0").replace(b"00", b"0")
    while b"00" in shapes:
        shapes = shapes.replace(b"00", b"0")
    return shapes


class LineFormats:
    """The formats that were found so far. Shared by all ranks of a run."""

    def __init__(self, names: Names = Names()) -> None:  # noqa: B008 - it is frozen
        self.names = names
        self._own = [name.lower().encode() for name in (names.loss, names.step) if name]
        self.known: dict[Section, dict[bytes, Known]] = {one: {} for one in get_args(Section)}
        """By section and shape."""

    def may_report(self, line: bytes, shape: bytes, section: Section = "training") -> bool:
        """Whether a line of an unknown shape is worth reading; if not, its shape is remembered. Costs about a microsecond."""
        if not line.startswith(_REMARK):
            line = (line if line.isascii() else in_english(line).encode()).lower()
            if b"loss" in line or b"/s" in line:
                return True
            words = line.translate(_LETTERS).split()
            if not _ANCHORS.isdisjoint(words) or any(name in line for name in self._own):
                return True
        self._remember(shape, None, section)
        return False

    def places(self, line: bytes, shape: bytes) -> list[tuple[str, int]] | None:
        """The main metrics of a line, its step and its epoch: the name of each, and the offset of a digit of its number.
        None: the step or the epoch is written in an uncommon way."""
        known = self.known["training"]
        if shape not in known:
            self.learn(line, shape)
        recipe = known.get(shape)
        if isinstance(recipe, Recipe):
            return _places(recipe, line)
        if not isinstance(recipe, str):
            return []
        text = line.decode("latin-1")
        fields = read_fields(text)
        meant = understand(fields, self.names)
        if meant is None:
            return []
        wanted = [(one.key, one.place) for one in meant.values if one.key in MAIN]
        wanted += [(key, place) for key, place in (("step", meant.step), ("epoch", meant.epoch)) if place is not None]
        begins = [(key, fields.numbers.begins[place], fields.numbers.texts[place]) for key, place in wanted]
        if any(not number.isdecimal() for key, _, number in begins if key in ("step", "epoch")):
            return None
        return [(key, begin + (number[0] in "+-")) for key, begin, number in begins]

    def _remember(self, shape: bytes, known: Known, section: Section) -> None:
        if len(shape) <= MAX_SHAPE:
            shapes = self.known[section]
            if len(shapes) >= MAX_SHAPES:
                shapes.clear()
            shapes[shape] = known

    def learn(self, line: bytes, shape: bytes, section: Section = "training") -> Line | Table | Heading | None:
        """Reads a line field by field, and remembers its shape for this section."""
        text = in_english(line)
        if len(line) <= LONGEST and (begun := section_of(text)):
            heading = Heading(begun, text.rstrip().endswith("{"))
            self._remember(shape, heading, section)
            return heading
        fields = read_fields(text)
        known: Known = None
        if not fields.fields:
            found: Line | Table | None = table_of(text, self.names)
            known = found if isinstance(found, Table) else None
        else:
            meant = understand(fields, self.names, section)
            found = _line(meant, fields.numbers) if meant else None
            is_clear = b"0,0" not in shape or (_all_grouped(fields) and not (meant and meant.doubt))
            known = "anew" if not is_clear else _recipe(meant, fields, text) if meant else None
        self._remember(shape, known, section)
        return found


def _all_grouped(fields: Fields) -> bool:
    """Whether every comma between digits is one of a number."""
    numbers = fields.numbers
    between = sum(
        fields.text.count(",", begin, begin + len(text))
        for text, begin in zip(numbers.texts, numbers.begins, strict=True)
    )
    return between == len(re.findall(r"\d,(?=\d)", fields.text))


def number_of(text: str) -> float:
    """The value of a match of `NUMBER`."""
    return float(text) if text.isdecimal() else float(text.replace(",", "").replace("_", ""))


def whole(value: float | None) -> int | None:
    """A step of a plausible size; None: another number."""
    return round(value) if value is not None and 0 <= value <= MAX_STEP else None


def _line(meant: Format, numbers: Numbers) -> Line:
    """The line that a format was made from."""

    def at(place: int | None) -> float | None:
        return None if place is None else number_of(numbers.texts[place]) * numbers.factors[place]

    found = [(one.key, number_of(numbers.texts[one.place]) * one.factor, one.inverted) for one in meant.values]
    values = {key: 1.0 / value if inverted else value for key, value, inverted in found if not inverted or value > 0}
    step, steps, epoch, epochs = map(at, (meant.step, meant.steps, meant.epoch, meant.epochs))
    return Line(meant, values, whole(step), whole(steps), _epoch(epoch), whole(epochs))


def _epoch(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= MAX_STEP else None


def _recipe(meant: Format, fields: Fields, text: str) -> Recipe | str:
    starts = [found.start() for found in _WORD.finditer(text)]
    words = _WORD.findall(text)

    def source(place: int | None, factor: float = 1.0, inverted: bool = False) -> Source | None:
        if place is None:
            return None
        number = fields.numbers.texts[place]
        sign, plain = -1.0 if number[0] == "-" else 1.0, number.lstrip("+-").lower()
        if plain[0] in "ni":
            return Source(-1, number_of(number))
        begin = fields.numbers.begins[place] + (number[0] in "+-")
        at = bisect_right(starts, begin) - 1
        mantissa, e, exponent = plain.partition("e")
        is_decimal = "." in plain and text[begin : begin + len(mantissa)] == mantissa.replace(".", ",")
        parts = re.split("[,_.]" if is_decimal else "[,_]", mantissa)
        joins = [b"." if is_decimal else b""] * (len(parts) - 1)
        if e:
            parts.append(exponent.lstrip("+-"))
            joins.append(b"e-" if exponent.startswith("-") else b"e")
        if words[at : at + len(parts)] != parts or starts[at] != begin:
            raise LookupError
        return Source(at, factor * sign, inverted, tuple(joins))

    try:
        values = tuple((one.key, source(one.place, one.factor, one.inverted)) for one in meant.values)
        factors = fields.numbers.factors
        counts = (meant.step, meant.steps, meant.epoch, meant.epochs)
        step, steps, epoch, epochs = (source(place, 1.0 if place is None else factors[place]) for place in counts)
    except LookupError:
        return "anew"
    sources = [(key, one) for key, one in values if one is not None]
    main = [(key, one) for key, one in sources if key in MAIN]
    return Recipe(meant, step, steps, epoch, epochs, _values_of(sources), _values_of(main))


def _values_of(sources: list[tuple[str, Source]]) -> Values:
    is_plain = all(one.is_plain for _, one in sources)
    return Values(tuple(sources), tuple((key, one.place) for key, one in sources) if is_plain else None)


def _take(words: list[bytes], source: Source) -> float | None:
    place, factor, inverted, joins = source
    if place < 0:
        return factor
    text = words[place]
    if joins:
        for at, join in enumerate(joins, place + 1):
            if not join and len(words[at].partition(b".")[0]) != 3:
                raise ValueError
            text += join + words[at]
    value = float(text) * factor
    if inverted:
        return 1.0 / value if value > 0 else None
    return value


def _places(recipe: Recipe, line: bytes) -> list[tuple[str, int]] | None:
    starts = [found.start() for found in _WORD_OF_LINE.finditer(line)]
    counts = [(key, one) for key, one in (("step", recipe.step), ("epoch", recipe.epoch)) if one is not None]
    if not all(one.is_plain for _, one in counts):
        return None
    return [(key, starts[one.place]) for key, one in [*recipe.main.sources, *counts] if one.place >= 0]


def read_line(recipe: Recipe, line: bytes, *, brief: bool = False) -> Line:
    """A line of a known shape. `brief`: leaves out metrics other than the main ones. Raises ValueError: its numbers are not written as in
    the line from which the recipe was made. Raises LookupError: it has fewer numbers."""
    words = line.translate(_TO_WORDS).split()
    step, steps, epoch, epochs = recipe.step, recipe.steps, recipe.epoch, recipe.epochs
    sources, plain = recipe.main if brief else recipe.values
    if plain is not None:
        values = {key: float(words[place]) for key, place in plain}
    else:
        values = {key: value for key, one in sources if (value := _take(words, one)) is not None}
    return Line(
        recipe.format,
        values,
        None if step is None else whole(_take(words, step)),
        None if steps is None else whole(_take(words, steps)),
        None if epoch is None else _epoch(_take(words, epoch)),
        None if epochs is None else whole(_take(words, epochs)),
    )
