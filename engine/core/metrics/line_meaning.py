"""Decides what the fields of a line mean: what counts steps, what is the epoch, which numbers are metrics. The result is a `Format`,
which holds places of numbers instead of values: it is the same for all lines that differ in digits only."""

import re
from itertools import pairwise
from typing import NamedTuple

from engine.core.metrics.fields import MULTIPLES, SECONDS, Field, Fields, is_size, pace_of_unit, rate_of_unit
from engine.core.metrics.line_counts import Kind, LineCounts
from engine.core.metrics.metric_names import Meaning, Names, meaning_of
from engine.core.metrics.patterns import P, W
from engine.core.metrics.tables import Section


class Value(NamedTuple):
    """A metric of a line: its key, which number it is, and how it is scaled. `inverted`: seconds for a step become steps per second."""

    key: str
    place: int
    factor: float = 1.0
    inverted: bool = False


class Format(NamedTuple):
    """The meaning of a line. Integers are indexes of its numbers; None: there is none."""

    step: int | None = None
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    values: tuple[Value, ...] = ()
    kind: Kind = ""
    counter: str = ""
    """Tells counters apart: the title of a bar, the name of a step. Empty if nothing is counted."""
    title: str = ""  # name of the counted work, for people: `validation`, `saving shards`
    is_aside: bool = False
    """It counts something else than training: held-out data, files, another bar with a title that says so."""
    of_epoch: bool = False  # the count begins again with each epoch
    is_summary: bool = False  # values of a whole run: they are not points of its curve
    loss_of: str = ""
    """The name of the loss if it is one of several; empty: it is the loss of the run, or there is none."""
    doubt: str = ""  # why a number is not shown

    @property
    def is_of_training(self) -> bool:
        """It counts steps or epochs of the training, so that a section of held-out data is over."""
        return (
            (self.step is not None or self.epoch is not None)
            and not (self.is_aside or self.is_summary or self.kind == "lead")
            and (self.kind not in ("bar", "bare") or any(one.key == "loss" for one in self.values))
        )

    @property
    def is_epochs_bar(self) -> bool:
        """It is a bar that counts epochs: those that are done."""
        return bool(self.title) and not self.kind and self.epoch is not None


class _Reading(LineCounts):
    def __init__(self, line: Fields, names: Names) -> None:
        super().__init__(line, names)
        self.values: dict[str, Value] = {}
        self.part: Value | None = None
        self.part_name, self.doubt = "", ""
        self.total_name = False  # whether the loss of the run was named on this line
        self.is_summary = "runtime" in self.lower or P.summary.match(self.text) is not None
        self.held_out_spans = [found.span() for found in P.held_out_object.finditer(self.text)]
        self.is_known = False  # a metric or a count was found that makes the line a report

    # --- metrics -------------------------------------------------------------------------------------------------------

    def take_values(self) -> None:
        """Reads the metrics, in order; of several values of a key the first counts."""
        for field in self.fields:
            if field.number in self.used or (field.total is not None and not rate_of_unit(field.unit)):
                continue
            if field.total is not None:
                self._add("rate", rate_of_unit(field.unit)[0], field.total, rate_of_unit(field.unit)[1])  # type: ignore[index]
                continue
            name = self.renamed.get(field.number, field.name)
            meaning = meaning_of(name, field.unit, self.names) if name else Meaning("none", "")
            before = self.held_out
            self.held_out = before or any(begin < field.begin < end for begin, end in self.held_out_spans)
            self._take_value(field, meaning, name)
            self.held_out = before

    def _is_total(self, name: str) -> bool:
        """Whether a loss is the sum of those before it: `Cls loss: 0.5 Reg loss: 0.3 Total loss: 0.8`."""
        is_total = "total" in name.lower() and not self.total_name
        self.total_name = self.total_name or name.lower() == "loss" or is_total
        return is_total

    def _take_value(self, field: Field, meaning: Meaning, name: str) -> None:
        role, key, factor = meaning
        place = field.number
        if (
            role in ("loss", "val_loss", "part", "known", "other")
            and P.doubtful.match(self.numbers.texts[place]) is not None
            and not P.point.search(self.text)
        ):
            text = self.numbers.texts[place]
            self.doubt = f"{text} may be {text.replace(',', '')} or {text.replace(',', '.')}"
            return
        if rate := rate_of_unit("it/s" if field.unit == "/s" and self.kind == "bar" else field.unit):
            if role not in ("loss", "val_loss", "lr") and not (
                self.held_out
                or is_size(field.unit)
                or not W.held_out.isdisjoint(re.split(r"[ _/.-]", field.name.lower()))
            ):
                self._add("rate", rate[0], place, rate[1])
            return
        if (pace := pace_of_unit(field.unit)) is not None:
            self._add_pace(place, pace)
            return
        if field.unit in ("ms", "us", "µs") and field.signed and P.step_time.match(field.name):
            self._add_pace(place, SECONDS[field.unit])
            return
        match role:
            case "loss" | "val_loss":
                if role == "loss" and self.held_out and "train" not in field.name.lower():
                    role = "val_loss"
                if role == "loss" and self._is_total(name):
                    self.values.pop("loss", None)
                self._add("known", role, place, self._multiple(field))
            case "part":
                if self.part is None and not self.held_out:
                    self.part, self.part_name = Value("loss", place, self._multiple(field)), key
                self._add("other", key, place, self._multiple(field))
            case "lr" | "grad_norm":
                self._add("known", key, place, self._multiple(field))
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
                    self._add("known" if field.signed else "other", key, place, self._multiple(field))
            case "other":
                if field.signed or self._looks_measured(field):
                    is_whole_name = field.signed or key.lower().endswith("loss")
                    self._add("other", key if is_whole_name else key.rpartition(" ")[2], place, self._multiple(field))

    def _multiple(self, field: Field) -> float:
        """1e6 of `1.05M`; `3m` are minutes."""
        is_large = field.unit in ("k", "m", "g") and self.text[field.end - 1] in "kKMG"
        return MULTIPLES[field.unit] if is_large else 1.0

    def _looks_measured(self, field: Field) -> bool:
        text = self.numbers.texts[field.number]
        return "." in text or "e" in text or not text[-1:].isdigit()

    def _is_pace(self, field: Field) -> bool:
        """Whether `time` is that of a step, and not of the whole run."""
        if self.step is None or self.held_out or P.of_many.search(field.name):
            return False
        is_averaged = P.averaged.match(self.text, field.end) is not None
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
            and not key.lower().startswith(tuple(W.held_out))
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
        else:
            self.part_name = ""
        if not (self.is_known or (counts and self.step is not None)):
            if self.epoch is None and self.steps is None and self.epochs is None:
                return None
            self.values.clear()
        values = tuple(sorted(self.values.values(), key=lambda value: value.place))
        is_epochs = self.kind == "bar" and bool(P.epoch_bar.match(self.title)) and "loss" not in self.values
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
            and not (
                self.bar >= 0 and "{" in self.text[self.bar :]
            )  # a record of Hugging Face behind a bar of all steps
            and self.steps is not None
            and (self.kind != "named" or self.counted == "batch"),
            is_summary=self.is_summary,
            loss_of=self.part_name,
            doubt=self.doubt,
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


def _last_report(line: Fields, names: Names) -> Fields:
    """Of several reports on one line, `step 1 loss 2.5; step 2 loss 2.4` or bars one after the other, the last one."""
    text, fields, numbers = line
    steps = [place for place, field in enumerate(fields) if meaning_of(field.name, "", names).role == "step"]
    alike = [at for at in steps if fields[at].name == fields[steps[0]].name]
    bars = [found.start() for found in P.bar.finditer(text)]
    if len(bars) > 1:
        cut = text.find("]", bars[-2]) + 1
    elif (
        len(alike) > 1
        and len({numbers.texts[fields[at].number] for at in alike}) == len(alike)
        and all(after - at > 1 for at, after in pairwise(alike))
    ):
        cut = fields[alike[-1] - 1].end
    else:
        return line
    return Fields(" " * cut + text[cut:], [field for field in fields if field.begin >= cut], numbers)


def understand(line: Fields, names: Names, section: Section = "training") -> Format | None:
    """The meaning of a line. `section`: the section that the line is in, unless it counts steps or epochs of the training. Returns None
    if it reports nothing about training."""
    if section in ("held out", "summary"):
        found = understand(line, names)
        if found is None or (found.is_of_training and (section == "held out" or found.step is not None)):
            return found
    reading = _Reading(_last_report(line, names), names)
    reading.held_out = reading.held_out or section.startswith("held out")
    reading.is_summary = reading.is_summary or section == "summary"
    if reading.bar >= 0 and not reading.take_bar():
        return None
    reading.take_counts()
    reading.take_values()
    found = reading.result()
    if found is not None and section == "summary":
        return found._replace(step=None, steps=None, epoch=None, epochs=None, counter="")
    if found is not None and found.counter and names.ignores(found.title):
        return None
    return found
