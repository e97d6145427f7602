"""`rankdeck metrics --try FILE`: the values read from each line of a script's output."""

import math
import re
from collections.abc import Iterable
from typing import Any

import click

from engine.commands.output import print_json
from engine.core.metrics.lines.formats import Line, LineFormats
from engine.core.metrics.lines.names import Names
from engine.core.metrics.lines.own_patterns import OwnPatterns
from engine.core.metrics.lines.reader import MetricReader
from engine.core.metrics.progress import RankProgress
from engine.core.metrics.readings import take_lines
from engine.core.plan.profile import Metrics
from engine.core.terminal_text import visible

_END = ("step", "steps", "epoch", "epochs", "epoch_step", "epoch_steps", "loss", "throughput", "unit")


def show_readings(lines: Iterable[bytes], metrics: Metrics, *, as_json: bool) -> None:
    """Prints every line with the values read from it, and the final values.

    No time passes between the lines of the rank, so no throughput is derived. As JSON: one object with `lines` and `end`.
    """
    names = Names(loss=metrics.loss, step=metrics.step, ignore=metrics.ignore)
    slow = "metrics.patterns: {!r} takes too long, and is not used"
    own = OwnPatterns(lambda pattern: click.echo(slow.format(pattern), err=True))
    reader, progress = MetricReader(metrics.patterns, LineFormats(names), own.find), RankProgress()
    shown: list[dict[str, Any]] = []
    parts = (part for line in lines for part in re.split(rb"\r\n|[\r\n]", line.removesuffix(b"\n")))
    for number, data in enumerate(parts, 1):
        found = reader.feed(data + b"\n")
        take_lines(0, progress, 0.0, found)
        reading = _reading(found[0], progress) if found else None
        if as_json:
            shown.append({"line": number, "text": data.decode(errors="replace"), "read": reading})
        elif data.strip():
            click.echo(visible(data.decode(errors="replace")))
            click.echo(click.style(f"    {_words(reading)}", fg="green" if reading else "bright_black"))
    end = {key: _shown(getattr(progress, key)) for key in _END}
    if as_json:
        print_json({"lines": shown, "end": end})
    else:
        known = [
            f"{key} {value:g}" if isinstance(value, int | float) else f"{key} {value}" if key == "loss" else value
            for key, value in end.items()
            if value not in (None, "")
        ]
        click.echo(f"at the end: {', '.join(known) or 'nothing is known'}")


def _reading(line: Line, progress: RankProgress) -> dict[str, Any]:
    read: dict[str, Any] = {key: getattr(line, key) for key in ("step", "steps", "epoch", "epochs")}
    is_training = line.step is not None and not line.format.is_aside and progress.aside == ""
    counts = "training" if is_training else line.format.title or "something else"
    if line.step is None:
        counts = "nothing"
    return {
        **{key: value for key, value in read.items() if value is not None},
        "counts": counts,
        "metrics": {key: _shown(value) for key, value in line.values.items()},
        "why": _why(line, progress),
    }


def _shown(value: Any) -> Any:
    """A number; `nan`, `inf` and `-inf` as texts, because JSON has no such numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _why(line: Line, progress: RankProgress) -> str:
    """Why a number of a line differs from the run's number; empty: they agree, or the line has none."""
    of, loss = line.format.loss_of, line.values.get("loss")
    if line.format.doubt:
        return f"{line.format.doubt}: not read"
    if line.format.is_summary:
        return "values of the whole run, which are no points of a curve"
    if loss is not None and progress.loss is None and loss == progress.placeholder:
        return f"a loss of {loss:g} from the first step on: another rank owns the loss"
    if loss is not None and of:
        return f"{of} stands for the loss" if of == progress.loss_of else f"{of} is one of several losses"
    is_held_out = line.format.is_aside and (line.step is None or line.format.counter.startswith("held out"))
    return "held-out data" if is_held_out else ""


def _words(reading: dict[str, Any] | None) -> str:
    """`step 12/100, epoch 1, loss = 0.5`."""
    if reading is None:
        return "nothing"
    words = []
    for one, of in (("step", "steps"), ("epoch", "epochs")):
        if one in reading or of in reading:
            words.append(f"{one} {reading.get(one, '?'):g}" if one in reading else f"{of} {reading[of]}")
            words[-1] += f"/{reading[of]}" if one in reading and of in reading else ""
    if reading["counts"] not in ("training", "nothing"):
        words[0] = visible(f"{reading['counts']}: {words[0]}, not the training's")
    for key, value in reading["metrics"].items():
        words.append(visible(f"{key} = {value if isinstance(value, str) else f'{value:g}'}"))
    return (", ".join(words) or "nothing") + (visible(f" ({reading['why']})") if reading["why"] else "")
