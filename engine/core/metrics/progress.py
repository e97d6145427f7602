"""The newest values of a rank, and those that it reports by `rankdeck.log`. `readings` adds values from its output and its files."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from engine.core.metrics.lines.counters import Counter
from engine.core.metrics.lines.formats import MAIN
from engine.core.metrics.series import Point, point
from engine.core.metrics.stretches import WAITED

THROUGHPUT_WINDOW = 0.25  # seconds of samples in one point of the throughput: a screen shows four points a second
MAX_KEYS = 64  # most curves of one rank; a script that generates names would otherwise fill the memory
TRAINING = "train"  # the phase of ordinary steps

MAX_PHASE = 24
MAX_USES = 8192
RAISED = "rankdeck.raised"  # the key of its report of the exception that ended the main thread, beside `threads`
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
    loss_of: str | None = None  # which of several losses `loss` is; empty: that of the run; None: no loss was printed
    placeholder: float | None = None
    """The value that this rank has printed as its loss so far, while another rank of the pipeline owns the loss."""
    throughput: float | None = None
    unit: str = ""
    rate: str = ""  # the key of the printed rate that `throughput` is: `tokens/s/device`
    checkpoint: int | None = None
    checkpoint_at: float | None = None
    seen: float | None = None
    meeting: Literal["", "joining", "joined", "orphan"] = ""
    """The rank's last report about its process group: it waits for the others, or all have joined, or a process that it has started waits
    for a store that nobody hosts."""
    uses: str | None = None
    """Installed modules that the script used when its process group was made, separated by spaces."""
    raised: str = ""  # the exception that ended its main thread, and what its process may wait for; empty: none did
    last_line: str = ""
    out_size: int = 0
    err_size: int = 0
    counted: float = 0.0  # samples or tokens since `counted_since`
    counted_since: float | None = None
    recorded: set[str] = set()  # metrics reported by `rankdeck.log`
    keys: set[str] = set()
    single: set[str] = set()  # metrics with one value so far, as in a summary at the end
    from_files: set[str] = set()  # metrics that the rank's tracker writes to a file and its output does not say
    in_files: dict[str, InFile] = {}  # metrics that were in the file before they were printed
    epoch: float | None = None  # as printed: counted from 0 or 1, or with a fraction
    epochs: int | None = None
    first_epoch: int | None = None  # the first epoch that was printed, by this or an earlier attempt
    has_epoch_lines: bool = False  # the newest epoch has a line of its own, so counts after it are those of the epoch
    epoch_step: int | None = None
    epoch_steps: int | None = None  # steps of the epoch, if steps are counted in each; `steps` are those of the run
    counters: dict[str, Counter] = {}
    owner: str = ""  # the name of the training's own count
    is_tested: bool = False  # whether the newest report is a count of held-out data: values without a count after it are their summary
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
    if at is None or not math.isfinite(at) or WAITED in record:  # a rank that hangs reports the latter too
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
            progress.raised = ""
            progress.meeting = "orphan" if word == "joining" and record.get("orphan") is True else word
    if isinstance(uses := record.get(USES), str):
        progress.uses = uses[:MAX_USES]
    if isinstance(raised := record.get(RAISED), str):
        threads = str(record.get("threads") or "")
        waits = f"it waits for the thread {threads}" if threads else "it is in an exit handler"
        progress.raised = f"{raised[:MAX_USES]}, and its process has not ended: {waits}"
    points = []
    for key, raw in record.items():
        if key in ("t", "step", "steps", "checkpoint", "samples", "tokens", "phase"):
            continue
        if key == "generation" and "elastic" in record:  # where a rank is in a rejoin: no metric of the script
            continue
        value = _number(raw)
        if value is not None and admit(progress, key):
            progress.recorded.add(key)
            progress.is_derived = progress.is_derived and key != "throughput"
            if key == "loss":
                progress.loss = value
            points.append(point(rank, key, at, step, value))
    count, unit = _number(record.get("tokens")), "tok"
    if count is None:
        count, unit = _number(record.get("samples")), "samples"
    if count is not None and math.isfinite(count):
        progress.recorded.add("throughput")
        points += _count(rank, progress, at, step, count, unit)
    return points


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
    return [point(rank, "throughput", at, step, progress.throughput)]


def admit(progress: RankProgress, key: str, most: int = MAX_KEYS) -> bool:
    if key not in progress.keys:
        is_full = len(progress.keys) >= most and key not in MAIN and key != "throughput"
        if is_full or len(key) > 64 or not key.isprintable():
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
