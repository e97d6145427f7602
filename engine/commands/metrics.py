"""`rankdeck metrics --try FILE`: what is read from each line of a script's output."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click
import msgspec

from engine.commands.output import print_json
from engine.core.metrics.line_formats import Line, LineFormats
from engine.core.metrics.metric_lines import MetricReader
from engine.core.metrics.metric_names import Names
from engine.core.metrics.progress import RankProgress, take_lines
from engine.core.plan.profile import Metrics
from engine.core.terminal_text import visible

_END = ("step", "steps", "epoch", "epochs", "epoch_step", "epoch_steps", "loss", "throughput", "unit")


def show_readings(lines: Iterable[bytes], metrics: Metrics, *, as_json: bool) -> None:
    """Prints every line with what is read from it, and what is known at the end.

    Args:
        lines: the output of one rank. No time passes between them, so no throughput is derived.
        metrics: of a profile.
        as_json: one object with `lines` and `end`.
    """
    names = Names(loss=metrics.loss, step=metrics.step, ignore=metrics.ignore)
    reader, progress = MetricReader(metrics.patterns, LineFormats(names)), RankProgress()
    shown: list[dict[str, Any]] = []
    for number, data in enumerate(
        (part for line in lines for part in re.split(rb"\r\n|[\r\n]", line.removesuffix(b"\n"))), 1
    ):
        found = reader.feed(data + b"\n")
        take_lines(0, progress, 0.0, found)
        reading = _reading(found[0], progress) if found else None
        if as_json:
            shown.append({"line": number, "text": data.decode(errors="replace"), "read": reading})
        elif data.strip():
            click.echo(visible(data.decode(errors="replace")))
            click.echo(click.style(f"    {_words(reading)}", fg="green" if reading else "bright_black"))
    end = {key: getattr(progress, key) for key in _END}
    if as_json:
        print_json({"lines": shown, "end": msgspec.to_builtins(end)})
    else:
        known = [
            f"{key} {value:g}" if not isinstance(value, str) else value
            for key, value in end.items()
            if value not in (None, "")
        ]
        click.echo(f"at the end: {', '.join(known) or 'nothing is known'}")


def _reading(line: Line, progress: RankProgress) -> dict[str, Any]:
    read: dict[str, Any] = {key: getattr(line, key) for key in ("step", "steps", "epoch", "epochs")}
    is_training = line.step is not None and not line.format.is_aside and progress.aside == ""
    return {
        **{key: value for key, value in read.items() if value is not None},
        "counts": "training"
        if is_training
        else line.format.title or "something else"
        if line.step is not None
        else "nothing",
        "metrics": line.values,
    }


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
    words += [visible(f"{key} = {value:g}") for key, value in reading["metrics"].items()]
    return ", ".join(words)
