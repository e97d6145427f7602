"""Turns reports of ranks into the newest values and points of curves. A rank reports metrics by `rankdeck.log` or in its output. Once a
metric was logged, its values in the output are ignored: otherwise every point would appear twice. A rank that prints steps and no
throughput has one that is derived from its steps and the time at which they are read."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from engine.core.metrics.counters import LAST_BARS, MAX_COUNTERS, Counter, choose, name_of
from engine.core.metrics.line_formats import MAIN, Line, whole
from engine.core.metrics.series import Point

THROUGHPUT_WINDOW = 0.25
"""Seconds of samples in one point of the throughput: a screen shows at most four points a second."""

_UNITS = {"throughput": "", "it/s": "it", "samples/s": "samples", "tokens/s": "tok"}
"""Units of throughput, by the key of a metric. From the most general to the most specific."""

_SAYS = {unit: place for place, unit in enumerate(_UNITS.values())}  # precedence of units; the most specific wins

DERIVED_AFTER = 3  # lines with a step and no throughput, after which it is derived

DERIVED_WINDOW = 1.0
"""Seconds of steps in one point of a derived throughput: lines are read some times a second, so less would be noise."""

MAX_KEYS = 64  # most curves of one rank; a script that generates names would otherwise fill the memory


PLACEHOLDERS = (-1.0, 0.0)  # values that ranks of a pipeline without its last stage print as their loss
TRAINING = "train"  # the phase of ordinary steps

MAX_PHASE = 24
MAX_USES = 8192
USES = "rankdeck.uses"  # the key of `rankdeck._autoload`'s report of modules


class InFile(msgspec.Struct):
    """A metric that comes from a file of the rank. `step`: the newest in the file; `later`: values of later steps that were printed."""

    step: int
    later: int = 0


class RankProgress(msgspec.Struct, kw_only=True):
    """The newest numbers of one rank. `throughput` is in `unit` per second; `seen` in seconds since the epoch."""

    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    loss_of: str | None = None
    """Which of several losses `loss` is; empty: that of the run; None: no loss was printed."""
    placeholder: float | None = None
    """The value printed as the loss so far, where another rank of the pipeline owns the loss."""
    throughput: float | None = None
    unit: str = ""
    checkpoint: int | None = None
    checkpoint_at: float | None = None
    seen: float | None = None
    meeting: Literal["", "joining", "joined", "orphan"] = ""
    """The rank's last report about its process group: it waits for the others, or all have joined, or a process that it has started waits
    for a store that nobody hosts."""
    uses: str | None = None
    """Installed modules that the script used when its process group was made, separated by spaces."""
    last_line: str = ""
    out_size: int = 0
    err_size: int = 0
    counted: float = 0.0  # samples or tokens since `counted_since`
    counted_since: float | None = None
    recorded: set[str] = set()  # metrics reported by `rankdeck.log`
    keys: set[str] = set()
    single: set[str] = set()  # metrics with one value so far, as in a summary at the end
    from_files: set[str] = set()  # metrics that the rank's tracker writes to a file and its output does not say
    in_files: dict[str, InFile] = {}  # those of them that were in the file before they were printed
    epoch: float | None = None  # as printed: counted from 0 or 1, or with a fraction
    epochs: int | None = None
    first_epoch: int | None = None  # the first epoch that was printed, by this or an earlier attempt
    has_epoch_lines: bool = False
    """The newest epoch has a line of its own, so counts after it are those of the epoch."""
    epoch_step: int | None = None
    epoch_steps: int | None = None
    """Step and steps of the epoch, if steps are counted in each; `step` and `steps` are those of the run."""
    counters: dict[str, Counter] = {}
    owner: str = ""  # the name of the training's own count
    aside: str = ""  # the rank's work beside training, with its count: `validation 12/40`; empty: none
    is_derived: bool = False  # whether `throughput` is made from steps and time
    steps_told: int = 0  # lines with a step since the last throughput that was printed
    phase: str = ""  # the rank's work instead of training, in its own word: `eval`; until its next step
    paced_at: float | None = None
    paced_step: int = 0  # where the window of a derived throughput begins


def take_record(rank: int, progress: RankProgress, record: Mapping[str, Any]) -> list[Point]:
    """Adds one line of a rank's metrics file. Returns new points of curves. `record`: `{"t": seconds since the epoch, "step": …, "loss":
    …, "samples": …, …}`; values of other types are skipped."""
    at = _number(record.get("t"))
    if at is None or not math.isfinite(at):
        return []
    progress.seen = at
    step = _whole(record.get("step"))
    if step is not None:
        if step != progress.step:
            progress.phase = ""
        progress.step = step
        if progress.steps is not None and step > progress.steps:
            progress.steps = None  # a bar counts something else
    if isinstance(phase := record.get("phase"), str):
        progress.phase = "" if phase == TRAINING else phase[:MAX_PHASE]
    if (steps := _whole(record.get("steps"))) is not None:
        progress.steps = steps
    if (checkpoint := _whole(record.get("checkpoint"))) is not None:
        progress.checkpoint, progress.checkpoint_at = checkpoint, at
    for word in ("joining", "joined"):
        if record.get(word) is True:
            progress.meeting = "orphan" if word == "joining" and record.get("orphan") is True else word
    if isinstance(uses := record.get(USES), str):
        progress.uses = uses[:MAX_USES]
    points = []
    for key, raw in record.items():
        if key in ("t", "step", "steps", "checkpoint", "samples", "tokens", "phase"):
            continue
        if key == "generation" and "elastic" in record:  # where a rank is in a rejoin: no metric of the script
            continue
        value = _number(raw)
        if value is not None and _admit(progress, key):
            progress.recorded.add(key)
            progress.is_derived = progress.is_derived and key != "throughput"
            if key == "loss":
                progress.loss = value
            points.append(_point(rank, key, at, step, value))
    count, unit = _number(record.get("tokens")), "tok"
    if count is None:
        count, unit = _number(record.get("samples")), "samples"
    if count is not None and math.isfinite(count):
        progress.recorded.add("throughput")
        points += _count(rank, progress, at, step, count, unit)
    return points


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
            continue
        _take_epoch(progress, line)
        is_training = line.step is None or _take_count(progress, line)
        if line.step is None and line.steps is not None and not _has_total(progress):
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
    if (
        counter is not None
        and "val_loss" in line.values
        and "loss" not in line.values
        and (line.step or 0) < counter.count
    ):
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


def _has_total(progress: RankProgress) -> bool:
    owner = progress.counters.get(progress.owner)
    return owner is not None and owner.total is not None


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
    """A loss was printed: counts that moved before it are probably those of the training."""
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
            rate = key if not rate or _SAYS[_UNITS[key]] > _SAYS[_UNITS[rate]] else rate
            continue
        if (
            key in progress.recorded
            or (key == "loss" and progress.loss_of != loss_of and not _is_loss(progress, loss_of, value))
            or not _admit(progress, key, most_keys)
        ):
            continue
        if key == "loss":
            progress.loss = value
            if line.step is None:
                _note_loss(progress)
        if is_from_file or not _is_in_file(progress, key, step):
            points.append(_point(rank, key, at, step, value))
    if rate and is_training and not (is_summary and progress.unit):
        found = _take_rate(rank, progress, at, step, rate, line.values[rate])
        points += [one for one in found if is_from_file or not _is_in_file(progress, one.key, step)]
    return points


def _is_loss(progress: RankProgress, name: str, value: float) -> bool:
    """Whether a printed loss is that of the rank. The loss of the run wins over one of several, and of several the first one that was
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
    """Whether a value that is printed came from a file before, so that it would be stored twice. Output that says more than the last
    steps of the file wins."""
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
    if not progress.is_derived and progress.throughput is not None and _SAYS[unit] < _SAYS[progress.unit]:
        name = key
    if name in progress.recorded or not _admit(progress, name):
        return []
    if name == "throughput":
        progress.throughput, progress.unit, progress.is_derived, progress.steps_told = value, unit, False, 0
    return [_point(rank, name, at, step, value)]


def _derive(rank: int, progress: RankProgress, at: float) -> list[Point]:
    """A throughput from steps and time, if none is printed."""
    progress.steps_told += 1
    if (
        progress.step is None
        or "throughput" in progress.recorded
        or (progress.throughput is not None and not progress.is_derived)
    ):
        return []
    if progress.paced_at is None or progress.step < progress.paced_step or at < progress.paced_at:
        progress.paced_at, progress.paced_step = at, progress.step
        return []
    elapsed = at - progress.paced_at
    if progress.steps_told < DERIVED_AFTER or elapsed < DERIVED_WINDOW or progress.step == progress.paced_step:
        return []
    progress.throughput, progress.unit, progress.is_derived = (
        (progress.step - progress.paced_step) / elapsed,
        "it",
        True,
    )
    progress.paced_at, progress.paced_step = at, progress.step
    return (
        [_point(rank, "throughput", at, progress.step, progress.throughput)] if _admit(progress, "throughput") else []
    )


def _point(rank: int, key: str, at: float, step: int | None, value: float) -> Point:
    return Point(rank, key, at, step, value if math.isfinite(value) else None)


def _count(rank: int, progress: RankProgress, at: float, step: int | None, count: float, unit: str) -> list[Point]:
    """Adds samples to the current window; returns a point of throughput if the window is complete."""
    progress.unit = unit
    if progress.counted_since is None or at < progress.counted_since:
        progress.counted_since, progress.counted = at, 0.0
        return []
    progress.counted += count
    elapsed = at - progress.counted_since
    if elapsed < THROUGHPUT_WINDOW:
        return []
    progress.throughput = progress.counted / elapsed
    progress.counted_since, progress.counted = at, 0.0
    return [_point(rank, "throughput", at, step, progress.throughput)]


def _admit(progress: RankProgress, key: str, most: int = MAX_KEYS) -> bool:
    if key not in progress.keys:
        if (
            (len(progress.keys) >= most and key not in MAIN and key != "throughput")
            or len(key) > 64
            or not key.isprintable()
        ):
            return False
        progress.keys.add(key)
        progress.single.add(key)
    elif progress.single:
        progress.single.discard(key)
    return True


def _number(raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    try:
        return float(raw)
    except OverflowError:
        return math.inf if raw > 0 else -math.inf


def _whole(raw: object) -> int | None:
    value = _number(raw)
    return int(value) if value is not None and math.isfinite(value) and abs(value) < 2**53 else None
