"""Gives the fields of a line their meaning: one counts steps, one is the epoch, others are metrics. The result is a `Format`. It holds
the places of numbers instead of their values, so all lines that differ only in digits share one."""

import re
from itertools import pairwise
from typing import NamedTuple

from engine.core.metrics.lines.counts import Kind, LineCounts
from engine.core.metrics.lines.fields import MULTIPLES, SECONDS, Field, Fields, is_size, pace_of_unit, rate_of_unit
from engine.core.metrics.lines.names import Meaning, Names, meaning_of
from engine.core.metrics.lines.patterns import P, W
from engine.core.metrics.lines.tables import Section


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
    counter: str = ""  # Tells counters apart: the title of a bar, the name of a step. Empty if nothing is counted.
    title: str = ""  # name of the counted work, for people: `validation`, `saving shards`
    is_aside: bool = False
    """It counts something else than training: held-out data, files, another bar with a title that says so."""
    of_epoch: bool = False  # the count begins again with each epoch
    is_summary: bool = False  # values of a whole run: they are not points of its curve
    loss_of: str = ""  # name of the loss if it is one of several; empty: the loss of the run, or none
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


class _Metrics:
    """Reads the metrics of a line whose counts are known."""

    def __init__(self, line: LineCounts, *, is_summary: bool) -> None:
        self.line = line
        self.values: dict[str, Value] = {}
        self.part: Value | None = None
        self.part_name, self.doubt = "", ""
        self.loss_rank = (
            0  # of the loss: 2: the run's by its name; 1: an average, as `running loss`; 0: maybe one of several
        )
        self.is_summary = is_summary or "train_runtime" in line.lower or P.summary.match(line.text) is not None
        self.held_out = line.held_out  # whether the number being read is of held-out data
        self.held_out_spans = [found.span() for found in P.held_out_object.finditer(line.text)]
        if label := P.held_out_label.search(line.text):
            training = line.lower.find("train", label.end())
            self.held_out_spans.append((label.end() - 1, training if training > 0 else len(line.text)))
        self.is_known = False  # a metric or a count was found that makes the line a report

    def take(self) -> None:
        """Reads the metrics, in order; of several values of a key the first counts."""
        if best := P.best_so_far.search(self.line.text):
            self.line.used.update(one.number for one in self.line.fields if best.start() < one.begin < best.end())
        for field in self.line.fields:
            if field.number in self.line.used or (field.total is not None and not rate_of_unit(field.unit)):
                continue
            if field.total is not None:
                self._add("rate", rate_of_unit(field.unit)[0], field.total, rate_of_unit(field.unit)[1])  # type: ignore[index]
                continue
            name = self.line.renamed.get(field.number, field.name)
            meaning = meaning_of(name, field.unit, self.line.names) if name else Meaning("none", "")
            self.held_out = self.line.held_out or any(begin < field.begin < end for begin, end in self.held_out_spans)
            self._take_value(field, meaning, name)
        pace, texts = self.values.get("it/s"), self.line.numbers.texts
        parts = [field.number for field in self.line.fields if P.parts_of_step.search(field.name)]
        if pace is not None and pace.inverted and any(float(texts[at]) > float(texts[pace.place]) for at in parts):
            del self.values["it/s"]  # `iter_time` of ESPnet is the time of loading data

    def _is_total(self, name: str) -> bool:
        """Whether a loss is the sum of those before it: `Cls loss: 0.5 Reg loss: 0.3 Total loss: 0.8`."""
        *before, last = P.word_breaks.split(name.lower())
        is_mean = last == "loss" and W.plain.issuperset(before) and W.tasks.isdisjoint(before)
        rank = 2 if "total" in name.lower() or not before else int(is_mean)
        is_higher, self.loss_rank = rank > self.loss_rank, max(rank, self.loss_rank)
        return is_higher

    def _take_value(self, field: Field, meaning: Meaning, name: str) -> None:
        role, key, factor = meaning
        place, text = field.number, self.line.numbers.texts[field.number]
        is_metric = role in ("loss", "val_loss", "part", "known", "other")
        if is_metric and P.doubtful.match(text) and not P.point.search(self.line.text):
            self.doubt = f"{text} may be {text.replace(',', '')} or {text.replace(',', '.')}"
            return
        if rate := rate_of_unit("it/s" if field.unit == "/s" and self.line.kind == "bar" else field.unit):
            held_out = self.held_out or not W.held_out.isdisjoint(re.split(r"[ _/.-]", field.name.lower()))
            if role not in ("loss", "val_loss", "lr") and not held_out and not is_size(field.unit):
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
                is_report = field.signed and self._looks_measured(field)
                self._add("known" if is_report else "other", key, place, self._multiple(field))
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
        is_large = field.unit in ("k", "m", "g") and self.line.text[field.end - 1] in "kKMG"
        return MULTIPLES[field.unit] if is_large else 1.0

    def _looks_measured(self, field: Field) -> bool:
        text = self.line.numbers.texts[field.number]
        return "." in text or "e" in text or not text[-1:].isdigit()

    def _is_pace(self, field: Field) -> bool:
        """Whether `time` is the time of a step, and not of the whole run."""
        if self.line.step is None or self.held_out or P.of_many.search(field.name):
            return False
        is_averaged = P.averaged.match(self.line.text, field.end) is not None
        return field.unit == "ms" or is_averaged or " eta" in self.line.lower or "data" in self.line.lower

    def _add_pace(self, place: int, seconds: float) -> None:
        if not self.held_out and "it/s" not in self.values:
            self.values["it/s"] = Value("it/s", place, seconds, inverted=True)
            self.is_known = True

    def _add(self, role: str, key: str, place: int, factor: float = 1.0) -> None:
        says_so = key in ("val_loss", "loss", "lr") or key.lower().startswith(tuple(W.held_out))
        if self.held_out and role != "rate" and not says_so:
            key = f"val_{key}"
        if key and key not in self.values and not self.line.names.ignores(key):
            self.values[key] = Value(key, place, factor)
            self.is_known = self.is_known or role != "other"

    def result(self) -> Format | None:
        """The format; None: the line reports nothing."""
        line = self.line
        if line.is_aside and not line.held_out:
            title = line.shown_title
            return Format(line.step, line.steps, kind=line.kind, counter=line.counter, title=title, is_aside=True)
        counts = line.step is not None or line.epoch is not None
        is_size = (
            line.counted == "batch" and line.epoch is None and line.steps is None and W.settings.issuperset(self.values)
        )
        if is_size and not P.batch_heading.match(line.text):
            return None  # `batch 64 is too large`, `lr: 0.1, batch: 8`
        if self.part is not None and "loss" not in self.values and counts and not line.names.loss:
            self.values = {"loss": self.part, **self.values}
            self.is_known = True
        else:
            self.part_name = ""
        if not (self.is_known or (counts and line.step is not None)):
            if line.epoch is None and line.steps is None and line.epochs is None:
                return None
            self.values.clear()
        values = tuple(sorted(self.values.values(), key=lambda value: value.place))
        is_record = line.bar >= 0 and "{" in line.text[line.bar :]  # of Hugging Face, behind a bar of all steps
        begins_again = line.steps is not None and (line.kind != "named" or line.counted == "batch")
        found = Format(
            step=line.step,
            steps=line.steps,
            epoch=line.epoch,
            epochs=line.epochs,
            values=values,
            kind=line.kind,
            counter=line.counter,
            title=line.shown_title,
            is_aside=line.held_out,
            of_epoch=line.epoch is not None and not is_record and begins_again,
            is_summary=self.is_summary,
            loss_of=self.part_name,
            doubt=self.doubt,
        )
        if line.kind == "bar" and P.epoch_bar.match(line.title) and "loss" not in self.values:
            return found._replace(
                step=None, steps=None, epoch=line.step, epochs=line.steps, values=(), kind="", counter=""
            )
        return found


def _last_report(line: Fields, names: Names) -> Fields:
    """The last report of a line that has several: `step 1 loss 2.5; step 2 loss 2.4`, or several bars."""
    text, fields, numbers = line
    steps = [place for place, field in enumerate(fields) if meaning_of(field.name, "", names).role == "step"]
    alike = [at for at in steps if fields[at].name == fields[steps[0]].name]
    bars = [found.start() for found in P.bar.finditer(text)]
    if len(bars) > 1:
        cut = text.find("]", bars[-2]) + 1
    elif bars and alike and _is_apart(line, fields[alike[0]], bars[0]):
        cut = text.find("]", bars[0]) + 1  # `2/215 [01:02<1:50:33, 31.15s/it]iteration 140 : loss : 0.3`
    elif (
        len(alike) > 1
        and len({numbers.texts[fields[at].number] for at in alike}) == len(alike)
        and all(after - at > 1 for at, after in pairwise(alike))
        and {one.name for one in fields[alike[-1] + 1 :]} & {one.name for one in fields[: alike[-1]]}
    ):
        cut = fields[alike[-1] - 1].end
    else:
        return line
    return Fields(" " * cut + text[cut:], [field for field in fields if field.begin >= cut], numbers)


def _is_apart(line: Fields, step: Field, bar: int) -> bool:
    """Whether a step that is printed behind a bar is another count than the bar's, such as one of epochs."""
    counts = [line.numbers.texts[one.number] for one in line.fields if one.total is not None and one.end <= bar + 1]
    is_behind = 0 <= line.text.find("]", bar) < step.begin
    reached = int(text) if (text := line.numbers.texts[step.number]).isdecimal() else 0
    return is_behind and all(one.isdecimal() and reached > 2 * int(one) + 10 for one in counts)


def understand(line: Fields, names: Names, section: Section = "training") -> Format | None:
    """The meaning of a line. `section`: the section that the line is in, unless it counts steps or epochs of the training. Returns None
    if it reports nothing about training."""
    if section in ("held out", "summary"):
        found = understand(line, names)
        if found is None or (found.is_of_training and (section == "held out" or found.step is not None)):
            return found
    counts = LineCounts(_last_report(line, names), names)
    counts.held_out = counts.held_out or section.startswith("held out")
    if counts.bar >= 0 and not counts.take_bar():
        return None
    counts.take_counts()
    metrics = _Metrics(counts, is_summary=section == "summary")
    metrics.take()
    found = metrics.result()
    if found is not None and section == "summary":
        return found._replace(step=None, steps=None, epoch=None, epochs=None, counter="")
    if found is not None and found.counter and names.ignores(found.title):
        return None
    return found
