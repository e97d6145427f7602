"""Reads what a line counts: steps, epochs, batches, with or without a bar, and whether it is about held-out data."""

import re
from typing import Literal

from engine.core.metrics.lines.fields import HIDDEN, Field, Fields, is_whole
from engine.core.metrics.lines.names import Meaning, Names, meaning_of
from engine.core.metrics.lines.patterns import P, W

Kind = Literal["", "named", "own", "bare", "bar", "lead", "file"]
"""How a line counts: not at all, `step 12`, by a name or pattern of the profile, `[12/100]`, with a bar, or with a number at its begin."""

HELD_OUT = "held out:"  # begins the name of a count of held-out data


class LineCounts:
    """A line whose counts are read."""

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
        self._is_vague = False  # the epoch is called `ep` or `current_epoch`: a number that is called `epoch` wins
        self._bare_totals: set[int] = set()  # totals that are called `steps`: `max_steps` wins
        self.used: set[int] = set()
        self.renamed: dict[int, str] = {}  # names of numbers that follow another number
        bar = P.bar.search(self.text)
        self.bar = bar.start() if bar else -1
        begin = self.fields[0].begin if self.fields else 0
        first = next((field.begin for field in self.fields if self._is_metric(field)), begin)
        self.held_out = bool(
            P.held_out_start.match(self.text)
            or P.held_out_part.search(self.text, 0, first)
            or P.held_out_phase.search(self.text)
        )

    @property
    def counter(self) -> str:
        """See `Format.counter`."""
        if self.step is None:
            return ""
        return f"{HELD_OUT if self.held_out else ''}{self.kind}:{self.counted}"

    @property
    def shown_title(self) -> str:
        """See `Format.title`."""
        return self.title or ("validation" if self.held_out else "")

    def _is_metric(self, field: Field) -> bool:
        counts = ("step", "steps", "epoch", "epochs")
        return bool(field.name) and meaning_of(field.name, "", self.names).role not in counts

    # --- counts --------------------------------------------------------------------------------------------------------

    def take_bar(self) -> bool:
        """Reads the count and the title of a progress bar, if they stand before its times. Returns False if it counts bytes."""
        for field in self.fields:
            if field.end > self.bar + 1 or self.text[field.end : self.bar].strip():
                continue
            if field.total is None and (field.signed or field.unit == "%"):
                return True  # ignite: `[12/100]  12%|█▏   , loss=2.34 [00:01<00:08]`
            if (field.total is None and field.unit not in ("it", "/?", "kit")) or P.bytes_behind.search(
                self.text, self.bar
            ):
                return False
            self.step, self.steps, self.kind = field.number, field.total, "bar"
            self.used.add(field.number)
            head = P.percent.sub("", self.text[: field.begin]) if field.total is not None else self.text[: field.begin]
            self._take_title(head)
            for other in self.fields:
                if other.begin < field.begin:
                    self._take_epoch_of(other)
                    if meaning_of(other.name, other.unit, self.names).role != "loss":
                        self.used.add(other.number)
            return True
        return True

    def _take_title(self, head: str) -> None:
        title = P.prefix.sub("", head).replace(HIDDEN, "").strip(" \t:|-•")[-40:]
        self.title = "" if "loss" in title.lower() else " ".join(title.split())
        words = set(re.split(r"[^a-z]+", self.title.lower()))
        self.held_out = self.held_out or not W.held_out.isdisjoint(words) or P.scores.search(title) is not None
        self.is_aside = self.held_out or (P.files.search(self.title) is not None and not P.training.match(self.title))
        self.counted = P.digits.sub("#", self.title.lower())

    def _take_epoch_of(self, field: Field) -> None:
        is_named = meaning_of(field.name, "", self.names).role == "epoch" and field.unit != "%"
        if is_named or (field.total is not None and P.epoch_behind.match(self.text, field.end)):
            self._set_epoch(field)

    def _set_epoch(self, field: Field) -> None:
        if self.epoch is None or self._is_vague:
            self.epoch, self.epochs = field.number, field.total
            self._is_vague = field.name.lower() == "ep" or field.name.endswith("current_epoch")

    def take_counts(self) -> None:
        """Reads steps and epochs by their names, then counts without a name. A line with a seed and no result lists settings."""
        if any(_last_word(field) == "seed" for field in self.fields) and not P.measured.search(self.lower):
            return
        if (found := P.place_of_batch.match(self.text)) and len(self.fields) > 2:
            self.epoch, self.step = self._take_at(found.start(1)), self._take_at(found.start(2))
            self.kind, self.counted = "named", "batch"
            return
        if found := P.step_in_brackets.search(self.text):
            self.step, self.kind, self.counted = self._take_at(found.start(1)), "named", "step"
        if found := P.epoch_in_brackets.search(self.text):
            self.epoch = self._take_at(found.start(1))
        bare: list[Field] = []
        for field, after in zip(self.fields, [*self.fields[1:], None], strict=True):
            if field.number in self.used or not self._is_whole(field):
                if field.number not in self.used and meaning_of(field.name, "", self.names).role == "epoch":
                    self._take_epoch_of(field)
                    self.used.add(field.number)
                continue
            meaning = meaning_of(field.name, "", self.names)
            if (field.total or meaning.role in ("step", "epoch")) and P.of_best.search(self.text, 0, field.begin):
                self.used.add(field.number)  # `best loss 0.41 @ epoch 7`
                continue
            if field.total is not None and P.epoch_behind.match(self.text, field.end):
                self._set_epoch(field)
                self.used.add(field.number)
            elif field.total is not None and _last_word(field) == "timesteps":
                self._take_named(field, Meaning("steps", "timesteps"))
            elif meaning.role == "loss" and self._is_before_value(field, after):  # `Train loss 40 0.7779`
                self.step, self.kind, self.counted = field.number, "named", "loss"
                self.renamed[after.number] = field.name  # type: ignore[union-attr]
                self.used.add(field.number)
            elif meaning.role in ("step", "steps", "epoch", "epochs"):
                self._take_named(field, meaning)
            elif field.total is not None and (not field.name or _last_word(field) in ("train", "training")):
                head = self.text[max(0, field.begin - 90) : field.begin]
                is_bar = (
                    P.glyphs.match(self.text, field.end) or P.percent_before.search(head) or P.bar_before.search(head)
                )
                if field.opened[-1:] != "(" or is_bar:
                    bare.append(field)
            elif field.total is not None and field.name.lower().strip("()") in W.held_out and self.step is None:
                self.held_out = True
                bare.append(field)
            elif (
                field.total is None and after and after.total is not None and _last_word(field) in ("train", "training")
            ):
                self._take_named(field, Meaning("epoch", "epoch"))  # timm: `Train: 0 [ 10/100 (8%)]`
            elif (
                field.total is not None
                and meaning.role == "other"
                and not field.signed
                and _last_word(field) not in W.no_counts
            ):
                bare.append(field)
        self._take_bare(bare)

    def _take_at(self, begin: int) -> int | None:
        """The number that begins at an index of the text; it is no metric."""
        number = next((one.number for one in self.fields if one.begin == begin), None)
        self.used.update(() if number is None else (number,))
        return number

    def _is_before_value(self, field: Field, after: Field | None) -> bool:
        """Whether a number that has the name of a loss is a count, and the loss stands behind it."""
        return (
            after is not None
            and not (field.signed or field.unit or field.total or after.name or self.step)
            and not self.text[field.end : after.begin].strip()
            and "." in self.numbers.texts[after.number]
        )

    def _is_whole(self, field: Field) -> bool:
        number = field.number
        return field.unit not in ("%", "s", "ms") and is_whole(self.numbers.texts[number], self.numbers.factors[number])

    def _take_named(self, field: Field, meaning: Meaning) -> None:
        role = meaning.role
        if role == "steps" and field.total is None and self.step is None and field.name.lower() in ("steps", "iters"):
            in_box = self.text.lstrip()[:1] in "|│"
            is_of_run = field.signed and P.episode.match(self.lower) is None
            is_summary = self.epoch is not None and not W.held_out.isdisjoint(re.split(r"[^a-z]+", self.lower))
            is_report = any(P.measured.search(f"{one.name} {one.unit}".lower()) for one in self.fields)
            if in_box or (is_of_run and is_report and not is_summary):
                role = "step"  # `steps: 10 loss: 9.1` of Megatron-DeepSpeed
        if role == "step" and self.step is None:
            self.step, self.steps, self.counted = field.number, field.total, meaning.key
            self.kind = "own" if self.names.step else "named"
        elif role == "epoch":
            self._set_epoch(field)
        elif role == "steps" and field.total is not None and self.step is None:  # `updates 10/100`
            self.step, self.steps, self.kind, self.counted = field.number, field.total, "named", meaning.key
        elif role in ("steps", "epochs") and field.total is None:
            begin = field.begin - len(field.name)
            is_named = " " in field.name or "_" in field.name
            is_total = is_named or self._is_argument(field, begin)
            if is_total and role == "steps" and (self.steps is None or (is_named and self.steps in self._bare_totals)):
                self.steps = field.number
            elif is_total and role == "epochs" and self.epochs is None:
                self.epochs = field.number
            if not is_named:
                self._bare_totals.add(field.number)
        self.used.add(field.number)

    def _is_argument(self, field: Field, begin: int) -> bool:
        """Whether `steps=100` is at the beginning or in a list of arguments, and not of warm-up or accumulation."""
        at = self.text.rfind(field.name, 0, field.begin)
        if self.text.lstrip().startswith("|"):
            return False  # a line of a table, which counts what was done
        return at <= 0 or (P.plain_word.search(self.text, max(0, at - 3), at) is not None and self.text[at - 1] in "({,'\" \x01" \
            and not self.text[max(0, at - 2) : at].strip(" ({,'\"").isalpha())  # fmt: skip

    def _take_bare(self, bare: list[Field]) -> None:
        """The last count without a name counts steps, the one before it epochs."""
        has_count = self.step is not None or self.epoch is not None or bare
        if not has_count and (found := P.lead.match(self.text) or P.lead_of_rates.search(self.text)):
            self.step, self.kind = self._take_at(found.start(found.lastindex or 0)), "lead"
        if self.step is not None or not bare:
            return
        field = bare[-1]
        before = self.text[max(0, field.begin - 90) : field.begin]
        has_glyphs = P.glyphs.match(self.text, field.end) or P.bar_before.search(before)
        is_named = bool(field.name) and _last_word(field) not in ("train", "training")
        if is_named and not self.held_out and "loss" not in self.lower:
            return
        is_report = (
            "loss" in self.lower or "eta" in self.lower or "time" in self.lower or has_glyphs or self.epoch is not None
            or field.unit == "batches" or self.held_out or self.names.loss
        )  # fmt: skip
        if not is_report:
            return
        self.step, self.steps, self.kind = field.number, field.total, "bar" if has_glyphs else "bare"
        if has_glyphs and P.scores.search(self.text, 0, field.begin):
            self.held_out = self.is_aside = True
        if is_named:
            self.counted = field.name.lower()
        if len(bare) > 1 and self.epoch is None:
            self.epoch, self.epochs = bare[-2].number, bare[-2].total
        self.used.update(one.number for one in bare)


def _last_word(field: Field) -> str:
    return field.name.lower().rpartition(" ")[2]
