"""Decides what the fields of a line mean: what counts steps, what is the epoch, which numbers are metrics.

The result is a `Format`, which holds places of numbers instead of values: it is the same for all lines that differ in digits only.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from engine.core.metrics.fields import (
    HIDDEN,
    MULTIPLES,
    SECONDS,
    Field,
    Fields,
    is_size,
    pace_of_unit,
    rate_of_unit,
)
from engine.core.metrics.metric_names import HELD_OUT, Meaning, Names, meaning_of

Kind = Literal["", "named", "own", "bare", "bar"]
"""How a line counts: not at all, `step 12`, by a name or pattern of the profile, `[12/100]`, or with a bar."""


class Value(NamedTuple):
    """A metric of a line: its key, which number it is, and how it is scaled. `inverted`: seconds for a step become steps per second."""

    key: str
    place: int
    factor: float = 1.0
    inverted: bool = False


class Format(NamedTuple):
    """What a line means. Numbers are places among the numbers of the line; None: there is none."""

    step: int | None = None
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    values: tuple[Value, ...] = ()
    kind: Kind = ""
    counter: str = ""
    """Tells counters apart: the title of a bar, the name of a step. Empty if nothing is counted."""
    title: str = ""
    """What is counted, for people: `validation`, `saving shards`."""
    is_aside: bool = False
    """It counts something else than training: held-out data, files, another bar with a title that says so."""
    of_epoch: bool = False
    """The count begins again with each epoch."""
    is_summary: bool = False
    """Values of a whole run: they are not points of its curve."""


_BAR = re.compile(rf"\[{HIDDEN}{{4,9}}[<,]")
"""tqdm: `12/100 [00:01<00:09, …`, or `12it [00:01, …` without a known end."""
_PERCENT = re.compile(r"\d{1,3}%\|?[^\d\[]*\Z")
_GLYPHS = re.compile(r"[ \t]*(?:\[[=>.#\-]{2,}\]?|[━╸╺─╾█▌▏▎▍]{2,})")
_FILES = re.compile(
    r"(?:down|up|re)?load|fetch|sav(?:e|ing)|writ|map\b|map |tokeni[sz]|filter|generat(?:e|ing)|extract|shard|checkpoint|convert"
    r"|preproc|import|read(?:ing)?\b|cach|pack|group|flatten|cast|creat|build|compil|warm|collect|quanti|encod|file|resolv|find|search"
    r"|scan|profil|calibrat|inferen|predict|infer|sampl|dataset|data set|weights|install|unpack|copy|sync",
    re.IGNORECASE,
)
_TRAINING = re.compile(r"train(?:ing)?\b|epoch", re.IGNORECASE)
_BYTES_BEHIND = re.compile(r"[\d?.][kmgt]?i?b/s", re.IGNORECASE)
_HELD_OUT_START = re.compile(
    r"[ \t\[]*(?:val|valid|validation|eval|evaluation|test|testing|dev)(?![\w./-]|[ ](?:avg[ ]|average[ ]|mean[ ])?loss)",
    re.IGNORECASE,
)
_HELD_OUT_PART = re.compile(
    r"(?:[|\]>:-][ \t]*|\()(?:val|valid|validation|eval|evaluation|test|testing|dev)(?=[ \t]*[:|\[)]|[ \t]+(?:set|epoch|step|iter|iteration|batch)\b)",
    re.IGNORECASE,
)
_PLACE_OF_BATCH = re.compile(r"[ \t]*\[[ \t]*\d+,[ \t]*\d+\][ \t]+\w*loss", re.IGNORECASE)
"""`[1,  2000] loss: 2.173` of PyTorch's tutorials: epoch and step."""
_STEP_IN_BRACKETS = re.compile(r"\][ \t]\[(\d{1,15})\][ \t]\w[\w/.-]*[=:]")
"""`logging_writer.py:48] [100] loss=0.2` of clu and flax: the step."""
_STEP_TIME = re.compile(r"(?:.* )?(?:step|iter|iteration|batch)\Z", re.IGNORECASE)
"""With a time behind it: how long a step takes."""
_AVERAGED = re.compile(r"[ \t]*\(")
_DIGITS = re.compile(r"\d+")
_PREFIX = re.compile(r"^(?:[ \t]*\[[^\]\[]*\][: \t]*)+")
_PLAIN_WORD = re.compile(r"[({,'\"\x01]?[ \t]?['\"]?\Z")
_EPOCH_BAR = re.compile(r"(?:train(?:ing)?[ _])?epochs?\Z", re.IGNORECASE)


class _Reading:
    """A line while it is read."""

    def __init__(self, line: Fields, names: Names) -> None:
        self.text, self.fields, self.numbers = line
        self.names = names
        self.lower = self.text.lower()
        self.step: int | None = None
        self.steps: int | None = None
        self.epoch: int | None = None
        self.epochs: int | None = None
        self.kind: Kind = ""
        self.counted = ""
        self.title = ""
        self.is_aside = False
        self.values: dict[str, Value] = {}
        self.part: Value | None = None
        self.is_known = False
        """A metric or a count was found that makes the line a report."""
        self.used: set[int] = set()
        bar = _BAR.search(self.text)
        self.bar = bar.start() if bar else -1
        first = self.fields[0].begin if self.fields else 0
        self.held_out = bool(_HELD_OUT_START.match(self.text) or _HELD_OUT_PART.search(self.text, 0, first))

    # --- counts --------------------------------------------------------------------------------------------------------

    def take_bar(self) -> bool:
        """Reads the count and the title of a progress bar. Returns False if it counts bytes."""
        for field in self.fields:
            if field.end > self.bar + 1 or self.text[field.end : self.bar].strip():
                continue
            if (field.total is None and field.unit != "it") or _BYTES_BEHIND.search(self.text, self.bar):
                return False
            self.step, self.steps, self.kind = field.number, field.total, "bar"
            self.used.add(field.number)
            head = _PERCENT.sub("", self.text[: field.begin]) if field.total is not None else self.text[: field.begin]
            self._take_title(head)
            for other in self.fields:
                if other.begin < field.begin:
                    self._take_epoch_of(other)
                    if not self._is_loss(other):
                        self.used.add(other.number)
            return True
        return False

    def _is_loss(self, field: Field) -> bool:
        return meaning_of(field.name, field.unit, self.names).role == "loss"

    def _take_title(self, head: str) -> None:
        title = _PREFIX.sub("", head).replace(HIDDEN, "").strip(" \t:|-•")[-40:]
        self.title = "" if "loss" in title.lower() else title
        words = set(re.split(r"[^a-z]+", self.title.lower()))
        self.held_out = self.held_out or not HELD_OUT.isdisjoint(words)
        self.is_aside = self.held_out or (_FILES.search(self.title) is not None and not _TRAINING.match(self.title))
        self.counted = _DIGITS.sub("#", self.title.lower())

    def _take_epoch_of(self, field: Field) -> None:
        if meaning_of(field.name, "", self.names).role == "epoch" and self.epoch is None:
            self.epoch, self.epochs = field.number, field.total

    def take_counts(self) -> None:
        """Reads steps and epochs by their names, then counts without a name."""
        if _PLACE_OF_BATCH.match(self.text) and len(self.fields) > 2:
            self.epoch, self.step, self.kind, self.counted = 0, 1, "named", "batch"
            self.used.update((0, 1))
            return
        if found := _STEP_IN_BRACKETS.search(self.text):
            self.step = next((one.number for one in self.fields if one.begin == found.start(1)), None)
            self.kind, self.counted = "named", "step"
            self.used.update(() if self.step is None else (self.step,))
        bare: list[Field] = []
        for field, after in zip(self.fields, [*self.fields[1:], None], strict=True):
            if field.number in self.used or not self._is_whole(field):
                if (
                    field.name
                    and meaning_of(field.name, "", self.names).role == "epoch"
                    and field.number not in self.used
                ):
                    self.epoch = field.number if self.epoch is None else self.epoch
                    self.used.add(field.number)
                continue
            meaning = meaning_of(field.name, "", self.names)
            if meaning.role in ("step", "steps", "epoch", "epochs"):
                self._take_named(field, meaning)
            elif field.total is not None and (not field.name or _last_word(field) in ("train", "training")):
                if field.opened[-1:] != "(":
                    bare.append(field)
            elif field.total is not None and field.name.lower().strip("()") in HELD_OUT and self.step is None:
                self.held_out = True
                bare.append(field)
            elif (
                field.total is None and after and after.total is not None and _last_word(field) in ("train", "training")
            ):
                self._take_named(field, Meaning("epoch", "epoch"))  # timm: `Train: 0 [ 10/100 (8%)]`
            elif field.total is not None and meaning.role == "other" and not field.signed:
                bare.append(field)
        self._take_bare(bare)

    def _is_whole(self, field: Field) -> bool:
        text = self.numbers.texts[field.number]
        return text.replace(",", "").isdecimal() and field.unit not in ("%", "s", "ms") and len(text) <= 15

    def _take_named(self, field: Field, meaning: Meaning) -> None:
        role = meaning.role
        if role == "steps" and field.total is None and "loss" in self.lower and self.step is None and field.signed:
            role = "step"  # `steps: 10 loss: 9.1` of Megatron-DeepSpeed
        if role == "step" and self.step is None:
            self.step, self.steps, self.kind, self.counted = field.number, field.total, self._named(), meaning.key
        elif role == "epoch" and self.epoch is None:
            self.epoch, self.epochs = field.number, field.total
        elif role == "steps" and field.total is not None and self.step is None:  # `updates 10/100`
            self.step, self.steps, self.kind, self.counted = field.number, field.total, "named", meaning.key
        elif role in ("steps", "epochs") and field.total is None:
            begin = field.begin - len(field.name)
            is_total = " " in field.name or "_" in field.name or self._is_argument(field, begin)
            if is_total and role == "steps" and self.steps is None:
                self.steps = field.number
            elif is_total and role == "epochs" and self.epochs is None:
                self.epochs = field.number
        self.used.add(field.number)

    def _named(self) -> Kind:
        return "own" if self.names.step else "named"

    def _is_argument(self, field: Field, begin: int) -> bool:
        """Whether `steps=100` is at the beginning or in a list of arguments, and not of warm-up or accumulation."""
        at = self.text.rfind(field.name, 0, field.begin)
        return at <= 0 or (_PLAIN_WORD.search(self.text, max(0, at - 3), at) is not None and self.text[at - 1] in "({,'\" \x01" \
            and not self.text[max(0, at - 2) : at].strip(" ({,'\"").isalpha())  # fmt: skip

    def _take_bare(self, bare: list[Field]) -> None:
        """Of counts without a name, the last counts steps; one before it the epochs."""
        if self.step is not None or not bare:
            return
        field = bare[-1]
        has_glyphs = _GLYPHS.match(self.text, field.end) or (
            field.begin and "━" in self.text[max(0, field.begin - 8) : field.begin]
        )
        if (
            field.name
            and not self.held_out
            and "loss" not in self.lower
            and _last_word(field) not in ("train", "training")
        ):
            return
        is_report = (
            "loss" in self.lower or "eta" in self.lower or "time" in self.lower or has_glyphs or self.epoch is not None
            or field.unit == "batches" or self.held_out or self.names.loss
        )  # fmt: skip
        if not is_report:
            return
        self.step, self.steps, self.kind = field.number, field.total, "bar" if has_glyphs else "bare"
        if field.name and _last_word(field) not in ("train", "training"):
            self.counted = field.name.lower()
        if len(bare) > 1 and self.epoch is None:
            self.epoch, self.epochs = bare[-2].number, bare[-2].total
        self.used.update(one.number for one in bare)

    # --- metrics -------------------------------------------------------------------------------------------------------

    def take_values(self) -> None:
        """Reads the metrics, in order; of several values of a key the first counts."""
        for field in self.fields:
            if field.number in self.used or (field.total is not None and not rate_of_unit(field.unit)):
                continue
            if field.total is not None:
                self._add("rate", rate_of_unit(field.unit)[0], field.total, rate_of_unit(field.unit)[1])  # type: ignore[index]
                continue
            meaning = meaning_of(field.name, field.unit, self.names) if field.name else Meaning("none", "")
            self._take_value(field, meaning)

    def _take_value(self, field: Field, meaning: Meaning) -> None:
        role, key, factor = meaning
        place = field.number
        if rate := rate_of_unit(field.unit):
            if role not in ("loss", "val_loss", "lr") and not self._is_other_rate(field):
                self._add("rate", rate[0], place, rate[1])
            return
        if (pace := pace_of_unit(field.unit)) is not None:
            self._add_pace(place, pace)
            return
        if field.unit in ("ms", "us", "µs") and field.signed and _STEP_TIME.match(field.name):
            self._add_pace(place, SECONDS[field.unit])
            return
        match role:
            case "loss" | "val_loss":
                if role == "loss" and self.held_out and "train" not in field.name.lower():
                    role = "val_loss"
                self._add("known", role, place)
            case "part":
                if self.part is None and not self.held_out:
                    self.part = Value("loss", place)
                self._add("other", key, place)
            case "lr" | "grad_norm":
                self._add("known", key, place)
            case "rate":
                if not self.held_out:
                    multiple = MULTIPLES.get(field.unit, 1.0) if field.unit else 1.0
                    self._add("rate", key, place, factor * multiple)
            case "pace":
                self._add_pace(place, SECONDS.get(field.unit, factor))
            case "time":
                if self._is_pace(field):
                    self._add_pace(place, factor)
                elif field.signed or field.unit:
                    self._add("other", key, place)
            case "known":
                if field.signed or self._looks_measured(field):
                    self._add("known" if field.signed else "other", key, place)
            case "other":
                if field.signed or self._looks_measured(field):
                    self._add("other", key if field.signed else key.rpartition(" ")[2], place)

    def _is_other_rate(self, field: Field) -> bool:
        return self.held_out or is_size(field.unit) or not HELD_OUT.isdisjoint(re.split(r"[ _/.-]", field.name.lower()))

    def _looks_measured(self, field: Field) -> bool:
        text = self.numbers.texts[field.number]
        return "." in text or "e" in text or not text[-1:].isdigit()

    def _is_pace(self, field: Field) -> bool:
        """Whether `time` is that of a step, and not of the whole run."""
        if self.step is None or self.held_out:
            return False
        is_averaged = _AVERAGED.match(self.text, field.end) is not None
        return field.unit == "ms" or is_averaged or " eta" in self.lower or "data" in self.lower

    def _add_pace(self, place: int, seconds: float) -> None:
        if not self.held_out and "it/s" not in self.values:
            self.values["it/s"] = Value("it/s", place, seconds, inverted=True)
            self.is_known = True

    def _add(self, role: str, key: str, place: int, factor: float = 1.0) -> None:
        if (
            self.held_out
            and role != "rate"
            and key not in ("val_loss", "loss", "lr")
            and not key.lower().startswith(tuple(HELD_OUT))
        ):
            key = f"val_{key}"
        if key and key not in self.values and not self.names.ignores(key):
            self.values[key] = Value(key, place, factor)
            self.is_known = self.is_known or role != "other"

    # --- result --------------------------------------------------------------------------------------------------------

    def result(self) -> Format | None:
        """The format; None: the line reports nothing."""
        if self.is_aside and not self.held_out:
            return Format(
                step=self.step,
                steps=self.steps,
                kind=self.kind,
                counter=self._counter(),
                title=self._shown(),
                is_aside=True,
            )
        counts = self.step is not None or self.epoch is not None
        if self.part is not None and "loss" not in self.values and counts and not self.names.loss:
            self.values = {"loss": self.part, **self.values}
            self.is_known = True
        if not (self.is_known or (counts and self.step is not None)):
            if self.epoch is None and self.steps is None and self.epochs is None:
                return None
            self.values.clear()
        values = tuple(sorted(self.values.values(), key=lambda value: value.place))
        is_epochs = self.kind == "bar" and bool(_EPOCH_BAR.match(self.title)) and "loss" not in self.values
        return Format(
            step=None if is_epochs else self.step,
            steps=None if is_epochs else self.steps,
            epoch=self.step if is_epochs else self.epoch,
            epochs=self.steps if is_epochs else self.epochs,
            values=() if is_epochs else values,
            kind="" if is_epochs else self.kind,
            counter="" if is_epochs else self._counter(),
            title=self._shown(),
            is_aside=self.held_out,
            of_epoch=self.epoch is not None
            and self.steps is not None
            and (self.kind != "named" or self.counted == "batch"),
            is_summary="runtime" in self.lower,
        )

    def _counter(self) -> str:
        if self.step is None:
            return ""
        base = f"{self.kind}:{self.counted}" if self.counted else f"{self.kind}:"
        return f"held out:{base}" if self.held_out else base

    def _shown(self) -> str:
        if self.held_out:
            return self.title if self.title else "validation"
        return self.title


def _last_word(field: Field) -> str:
    return field.name.lower().rpartition(" ")[2]


def understand(line: Fields, names: Names) -> Format | None:
    """What a line means.

    Args:
        line: its fields.
        names: what the profile says about names.

    Returns:
        None if it reports nothing about training.
    """
    reading = _Reading(line, names)
    if reading.bar >= 0 and not reading.take_bar():
        return None
    reading.take_counts()
    reading.take_values()
    found = reading.result()
    if found is not None and found.counter and names.ignores(found.title):
        return None
    return found
