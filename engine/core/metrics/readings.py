"""Takes the newest values and points of curves from a rank's output, and from the file of its tracker where the output lacks them.

- A metric that the rank has reported by `rankdeck.log` is not taken from the output: every point would appear twice.
- A rank that prints steps and no throughput has one that is derived from its steps and the time at which they are read.
- The output has priority over the file: a metric that is printed is not taken from the file, and printed steps are the rank's steps. A
  program with rich bars prints the last one only, at its end, and wandb prints the last value of each metric; so few values have no
  priority. If the file is read first, the output gets priority as soon as it shows more than the last steps of the file.
"""

import math
from collections.abc import Iterable

from msgspec.structs import replace

from engine.core.metrics.event_records import Scalar
from engine.core.metrics.lines.counters import LAST_BARS, MAX_COUNTERS, Counter, choose, name_of
from engine.core.metrics.lines.counts import HELD_OUT
from engine.core.metrics.lines.formats import Line, whole
from engine.core.metrics.lines.meaning import Format
from engine.core.metrics.lines.names import Names, meaning_of
from engine.core.metrics.progress import MAX_KEYS, InFile, RankProgress, admit
from engine.core.metrics.series import Point, point

_UNITS = {"throughput": "", "it/s/device": "it", "it/s": "it", "samples/s/device": "samples", "tokens/s/device": "tok",
          "samples/s": "samples", "tokens/s": "tok"}  # fmt: skip
"""Units of throughput, by the key of a metric. General units stand before specific ones, and units of one GPU before units of all."""

_PRECEDENCE = {key: place for place, key in enumerate(_UNITS)}

DERIVED_AFTER = 3  # lines with a step and no throughput, after which it is derived
DERIVED_WINDOW = 1.0  # seconds of steps in one point of a derived throughput: less would be noise
PLACEHOLDERS = (-1.0, 0.0)  # values that ranks of a pipeline without its last stage print as their loss

_COUNTED = Format(kind="file", counter="file")
_UNCOUNTED = Format(kind="file")


def take_lines(
    rank: int, progress: RankProgress, at: float, lines: Iterable[Line], most_keys: int = MAX_KEYS
) -> list[Point]:
    """Adds lines of a rank's output. Returns new points of curves. `at`: when they were read, seconds since the epoch. `lines`: in the
    order in which they were printed. `most_keys`: curves of this rank, besides the main ones."""
    points: list[Point] = []
    for line in lines:
        if line.format.is_aside:
            if line.step is not None and (line.steps is not None or line.format.kind == "bar"):
                progress.aside = _aside_words(line)
            points += _take_values(rank, progress, at, line, most_keys, is_training=False)
            progress.is_tested = line.step is not None and line.format.counter.startswith(HELD_OUT)
            continue
        if progress.is_tested and line.step is None and line.epoch is None and "loss" in line.values:
            line = replace(line, values={f"val_{key}": value for key, value in line.values.items()})
        progress.is_tested = False
        _take_epoch(progress, line)
        is_training = line.step is None or _take_count(progress, line)
        owner = progress.counters.get(progress.owner)
        if line.step is None and line.steps is not None and (owner is None or owner.total is None):
            progress.steps = line.steps
        points += _take_values(rank, progress, at, line, most_keys, is_training=is_training)
        if is_training and line.step is not None:
            points += _derive(rank, progress, at)
    return points


def _take_epoch(progress: RankProgress, line: Line) -> None:
    if line.epoch is not None:
        progress.epoch = line.epoch
        if progress.first_epoch is None:
            progress.first_epoch = int(line.epoch)
        progress.has_epoch_lines = line.step is None and not line.values
    if line.epochs is not None:
        progress.epochs = line.epochs
    if line.format.is_epochs_bar and line.epoch == line.epochs and "step" not in progress.recorded:
        counter = progress.counters.get(progress.owner)
        if counter is not None and counter.complete():
            _set_steps(progress, counter)


def _take_count(progress: RankProgress, line: Line) -> bool:
    """Adds the count of a line. Returns whether it is the training's own."""
    name = name_of(line)
    of_epoch = line.format.of_epoch or (progress.has_epoch_lines and line.format.kind in ("bar", "bare"))
    counter = progress.counters.get(name)
    is_tested = "val_loss" in line.values and "loss" not in line.values
    if counter is not None and is_tested and (line.step or 0) < counter.count:
        return False
    if counter is None:
        if len(progress.counters) >= MAX_COUNTERS:
            return False
        counter = progress.counters[name] = Counter()
        if of_epoch and progress.epoch is not None and line.steps and progress.first_epoch is not None:
            counter.offset = max(0, int(progress.epoch) - progress.first_epoch) * line.steps
    counter.take(line, progress.epoch, of_epoch)
    if "loss" in line.values:
        counter.losses += 1
        _note_loss(progress, but=name)
    if counter.is_pair and line.step is not None:
        progress.epoch = float(line.step)
    if name != progress.owner:
        before = progress.counters.get(progress.owner)
        progress.owner = choose(progress.counters, progress.owner, name)
        if progress.owner != name:
            return _take_same_count(progress, counter, line)
        if before is not None and abs(before.count - counter.count) <= 1:
            before.agrees = 2
    progress.aside = ""
    if "step" not in progress.recorded:
        _set_steps(progress, counter)
    return True


def _take_same_count(progress: RankProgress, counter: Counter, line: Line) -> bool:
    """Follows a bar that counts the same as the training's own count, which has no total. Returns whether it does."""
    owner = progress.counters[progress.owner]
    total = counter.total or 0
    if counter.kind == "bar" and not (owner.of_epoch or owner.total or counter.of_epoch) and total >= owner.count > 0:
        counter.agrees += abs(counter.count - owner.count) <= 1
        if counter.agrees and "step" not in progress.recorded:
            progress.steps, progress.aside = total, ""
            if counter.agrees > 1 or line.format.title:
                progress.step = max(owner.step, counter.count)
            return True
    progress.aside = _aside_words(line)
    return False


def _set_steps(progress: RankProgress, counter: Counter) -> None:
    if counter.kind == "lead" and counter.advances < 2:
        return
    progress.step = whole(counter.step)
    if progress.steps is not None and counter.step > progress.steps:
        progress.steps = None  # the total of another count
    if not counter.of_epoch:
        progress.epoch_step = progress.epoch_steps = None
        progress.steps = counter.total if counter.total is not None or counter.is_pair else progress.steps
        return
    progress.epoch_step, progress.epoch_steps = counter.count, counter.total
    progress.steps = None
    if counter.total is not None and progress.epochs is not None and progress.first_epoch is not None:
        progress.steps = counter.total * max(1, progress.epochs - max(0, progress.first_epoch - 1))


def _note_loss(progress: RankProgress, but: str = "") -> None:
    """Notes that a loss was printed: counts that moved before it probably belong to the training."""
    for name, counter in progress.counters.items():
        if counter.has_moved and name != but:
            counter.with_losses += 1
        counter.has_moved = False


def _aside_words(line: Line) -> str:
    """`validation 12/40`; empty if it is done."""
    if line.step is None or line.step == line.steps:
        return ""
    title = line.format.title.lower() if line.format.title else "another bar"
    return f"{title[:24]} {line.step}" + (f"/{line.steps}" if line.steps is not None else "")


def _take_values(
    rank: int, progress: RankProgress, at: float, line: Line, most_keys: int, *, is_training: bool
) -> list[Point]:
    """Adds the metrics of a line. For counts beside training, only rates are left out."""
    points: list[Point] = []
    step = progress.step if line.step is not None or progress.owner else None
    rate = ""
    is_summary, loss_of, is_from_file = line.format.is_summary, line.format.loss_of, line.format.kind == "file"
    for key, value in line.values.items():
        if is_summary and key in progress.keys and not is_from_file:
            key = f"final/{key}"[:64]
        if key in _UNITS:
            rate = key if not rate or _PRECEDENCE[key] > _PRECEDENCE[rate] else rate
            continue
        if key in progress.recorded:
            continue
        is_other = key == "loss" and progress.loss_of != loss_of and not _is_loss(progress, loss_of, value)
        if is_other or not admit(progress, key, most_keys):
            continue
        if key == "loss":
            progress.loss = value
            if line.step is None:
                _note_loss(progress)
        if is_from_file or not _is_in_file(progress, key, step):
            points.append(point(rank, key, at, step, value))
    if rate and is_training and not (is_summary and progress.unit):
        found = _take_rate(rank, progress, at, step, rate, line.values[rate])
        points += [one for one in found if is_from_file or not _is_in_file(progress, one.key, step)]
    return points


def _is_loss(progress: RankProgress, name: str, value: float) -> bool:
    """Whether a printed loss is the rank's loss. The loss of the run wins over one of several, and of several the first one that was
    printed stays. A rank that does not own the loss of a pipeline prints a placeholder from its first step on. `name`: which of several
    it is; empty: the loss of the run."""
    if progress.loss_of is not None and name not in ("", progress.loss_of):
        return False
    if progress.loss is None and value in PLACEHOLDERS and progress.placeholder in (None, value):
        progress.placeholder = value
        return False
    progress.loss_of = name
    return True


def _is_in_file(progress: RankProgress, key: str, step: int | None) -> bool:
    """Whether a value that is printed came from a file before, so that it would be stored twice. The output wins if it shows more than the
    last steps of the file."""
    told = progress.in_files.get(key)
    if told is None:
        return False
    if step is not None and step > told.step:
        told.later += 1
        if told.later > LAST_BARS:
            del progress.in_files[key]
            progress.from_files.discard(key)
            return False
    return True


def _take_rate(rank: int, progress: RankProgress, at: float, step: int | None, key: str, value: float) -> list[Point]:
    """Adds a throughput. Once one in samples or tokens was printed, iterations are a metric of their own."""
    unit = _UNITS[key] or progress.unit
    name = "throughput"
    if not progress.is_derived and progress.rate and _PRECEDENCE[key] < _PRECEDENCE[progress.rate]:
        name = key
    if name in progress.recorded or not admit(progress, name):
        return []
    if name == "throughput":
        progress.throughput, progress.unit, progress.is_derived, progress.steps_told = value, unit, False, 0
        progress.rate = key if _UNITS[key] else progress.rate
    return [point(rank, name, at, step, value)]


def _derive(rank: int, progress: RankProgress, at: float) -> list[Point]:
    """A throughput from steps and time, if none is printed."""
    progress.steps_told += 1
    is_told = "throughput" in progress.recorded or (progress.throughput is not None and not progress.is_derived)
    if progress.step is None or is_told:
        return []
    if progress.paced_at is None or progress.step < progress.paced_step or at < progress.paced_at:
        progress.paced_at, progress.paced_step = at, progress.step
        return []
    elapsed = at - progress.paced_at
    if progress.steps_told < DERIVED_AFTER or elapsed < DERIVED_WINDOW or progress.step == progress.paced_step:
        return []
    progress.throughput = (progress.step - progress.paced_step) / elapsed
    progress.unit, progress.is_derived = "it", True
    progress.paced_at, progress.paced_step = at, progress.step
    return [point(rank, "throughput", at, progress.step, progress.throughput)] if admit(progress, "throughput") else []


def take_scalars(
    rank: int,
    progress: RankProgress,
    found: Iterable[Scalar],
    names: Names,
    now: float,
    most_keys: int = MAX_KEYS,
    *,
    is_echo: bool = False,
) -> list[Point]:
    """Adds scalars of a rank's files to its progress. Returns new points of curves. `now`: seconds since the epoch; a program's time that
    can't be true is replaced by it. `most_keys`: curves of this rank, besides the main ones. `is_echo`: if the program prints a metric at
    all, it prints every value of it."""
    points: list[Point] = []
    for scalar in found:
        role, key, factor = meaning_of(scalar.tag, "", names)
        key = key if role in ("lr", "grad_norm", "rate") else role if role in ("loss", "val_loss") else scalar.tag
        if key.replace("/", "_") in progress.keys:  # `eval/accuracy` is printed as `eval_accuracy`
            key = key.replace("/", "_")
        if role in ("epoch", "epochs", "step", "steps") or names.ignores(scalar.tag):
            continue
        if not is_echo:
            printed = progress.counters.get(progress.owner)
            if printed is not None and progress.owner != _COUNTED.counter and printed.advances <= LAST_BARS:
                progress.owner, progress.steps = "", None
                progress.from_files |= progress.keys
        shown = "throughput" if role == "rate" else key
        is_told = shown in progress.keys and shown not in progress.from_files
        is_printed = is_told and (is_echo or shown not in progress.single)
        at = scalar.at if math.isfinite(scalar.at) and 0 < scalar.at <= now else now
        step = _step_of(progress, scalar, key)
        values = {} if is_printed else {key: scalar.value * factor}
        line = Line(_UNCOUNTED if step is None else _COUNTED, values, step=step)
        new = take_lines(rank, progress, at, [line], most_keys)
        progress.from_files.update(one.key for one in new)
        for told in {shown, shown.replace("/", "_")} if values else ():
            progress.in_files[told] = InFile(progress.step or 0)
        points += new
    return points


def _step_of(progress: RankProgress, scalar: Scalar, key: str) -> int | None:
    """The step of a scalar if it is one of training: others may be written with the number of an epoch."""
    if progress.owner not in ("", _COUNTED.counter):
        return None
    counter = progress.counters.get(_COUNTED.counter)
    goes_on = counter is None or scalar.step >= counter.count
    return whole(float(scalar.step)) if key == "loss" or goes_on else None
