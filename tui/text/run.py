"""A run in words: the header, the explanation of a failure, the events, the stacks. Pure text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.cells import cell_len, chop_cells
from textual.content import Content

from engine.client.editor import frame_to_edit
from engine.core.numbers import NOTHING, TIME, age, clock, duration, number, precise
from engine.core.run.state import ENDED_WORDS
from engine.core.settings import DEFAULT_UNITS, Units
from engine.core.views.view import EventLine, RunView, StallView
from engine.core.words import count, rank_ranges, rank_words
from tui.data.model import Header
from tui.keys import first_key
from tui.text.cells import clean, cut_run, plain_line
from tui.text.lines import labelled, sentence
from tui.text.marks import MUTED, RUN_MARKS, bar, shown

MAX_NAME = 24
LOSS_CELLS = 9  # Cells of the loss. Every loss that is not negative fits, so that the text after it does not move.
WIDE = 100  # cells of a line in which the generation is written out
TRACEBACK_LINES = 12  # Lines of a traceback that are shown: the error is at its end. The log has all of it.
EVENT_STYLES = {"warning": "$text-warning", "error": "$text-error"}


def header_lines(header: Header, width: int, *, ascii: bool) -> tuple[Content, Content]:
    """The two lines above the rank table, each `width` cells. Values keep their place and their width."""
    first, second = _state_line(header, width, ascii=ascii), _value_line(header, width)
    return shown(first, ascii=ascii), shown(second, ascii=ascii)


def _state_line(header: Header, width: int, *, ascii: bool) -> Content:
    run = header.run
    mark = RUN_MARKS[run.state]
    word = f"{mark.sign(ascii=ascii)} {run.state:<9}"
    steps = _step_words(run, width)
    parts: list[tuple[str, str]] = [
        (cut_run(header.title, min(MAX_NAME, max(6, width // 4)), ascii=ascii), "bold"),
        (f"  {word}", mark.style),
        (f"  attempt {_attempt(run, width)}", MUTED if run.attempt == run.generation == 0 else "$text-warning"),
        (f"  {steps}", ""),
    ]
    eta = f"ETA {duration(header.eta):<8}" if header.eta is not None else ""
    room = width - sum(cell_len(text) for text, _ in parts) - (len(eta) + 2 if eta else 0) - 2
    if header.fraction is not None and room >= 6:
        done, rest = bar(header.fraction, min(room, 60), ascii=ascii)
        parts += [("  ", ""), (done, "$success" if run.state == "succeeded" else "$primary"), (rest, "$foreground 25%")]
    if eta:
        parts.append((f"  {eta}", ""))
    return Content.assemble(*parts)


def _step_words(run: RunView, width: int) -> str:
    """`step 812/1000`; if steps are counted in each epoch `epoch 3/5 · step 40/100 · 240 in all`, without the last on a narrow line."""
    epoch = "" if run.epoch is None else f"epoch {run.epoch:.4g}" + (f"/{run.epochs}" if run.epochs else "")
    if run.epoch_step is not None:
        of_epoch = f"{run.epoch_step:>{len(str(run.epoch_steps or 0))}}" + (
            f"/{run.epoch_steps}" if run.epoch_steps else ""
        )
        if width < WIDE:
            return f"{epoch} {of_epoch}".strip()
        return f"{epoch} · step {of_epoch} · {run.step} in all".removeprefix(" · ")
    if run.step is None and epoch:
        return epoch
    step = NOTHING if run.step is None else str(run.step)
    return f"step {step:>{len(str(run.steps or 0))}}" + (f"/{run.steps}" if run.steps else "")


def _attempt(run: RunView, width: int) -> str:
    """Attempt and generation: `1`, `1.3`, or on a wide line `1 · generation 3`."""
    if run.generation == 0:
        return str(run.attempt)
    return f"{run.attempt}{' · generation ' if width >= WIDE else '.'}{run.generation}"


def _value_line(header: Header, width: int) -> Content:
    run = header.run
    unit = plain_line(run.unit)
    dead = run.alive < run.world_size and run.state in ("running", "holding")
    ranks = f"{run.alive:>{len(str(run.world_size))}}/{run.world_size} ranks"
    if run.state in ENDED_WORDS:
        ranks = count(run.world_size, "rank")
    parts: list[tuple[str, str]] = [
        (f"{duration(header.elapsed):<8} ", ""),
        (ranks, "$text-error bold" if dead else ""),
    ]
    if run.throughput is not None or run.state not in ENDED_WORDS:
        parts += [
            (f" {'~' if run.is_derived else ' '}{number(run.throughput, 6)}", ""),
            (f" {unit}/s" if unit else " per s", MUTED),
        ]
    of = f" of {rank_words(run.loss_ranks)}" if run.loss_ranks else ""
    parts += [(f"  loss{of}", MUTED), (f" {precise(header.loss):>{LOSS_CELLS}}", "")]
    if run.checkpoint is not None:
        since = f", {age(header.checkpoint_age)} ago" if header.checkpoint_age is not None else ""
        parts.append((f"  checkpoint {run.checkpoint}{since}", MUTED))
    if run.aside:
        parts.append((f"  {plain_line(run.aside)}", MUTED))
    if doing := _doing(header):
        parts.append((f"  {plain_line(doing)}", "$text-warning"))
    if run.job is not None and run.state not in ENDED_WORDS:
        is_late = run.job.last_step is not None
        parts.append((f"  {plain_line(run.job.words(header.now))}", "$text-warning" if is_late else MUTED))
    if trained := _trained(header):
        parts.append((f"  {trained}", MUTED))
    if run.python:
        parts.append((f"  {plain_line(run.python)}", MUTED))
    return Content.assemble(*parts).truncate(width, ellipsis=True)


def _trained(header: Header) -> str:
    """`trained 82%`; empty: not known. The share of the run's time in which it has made new steps."""
    used = header.run.goodput
    share = used.until(header.now).shares().get("training") if used is not None else None
    return "" if share is None else f"trained {share:.0%}"


def _doing(header: Header) -> str:
    """The activity of the run; while nodes are unreachable, for how long they have been."""
    away = [f"{node} {away_words(seconds)}" for node, seconds in header.away.items()]
    more = f" and {len(away) - 2} more" if len(away) > 2 else ""
    if not away and header.run.stall is not None:
        stall = header.run.stall
        return f"no step for {age(header.stalled)}: {rank_ranges(stall.late or stall.ranks)}"
    return ", ".join(away[:2]) + more if away else header.run.doing


def away_words(seconds: float) -> str:
    """How long a node has been unreachable: `unreachable 12 s`."""
    return f"unreachable {age(seconds)}"


def why_text(
    run: RunView,
    width: int,
    *,
    ascii: bool,
    keymap: Mapping[str, str] = MappingProxyType({}),
    units: Units = DEFAULT_UNITS,
    news: str = "",
) -> Content:
    """The pane beside the log: what failed, what the key of a restart does, the next step with a line to copy, the consequences, the end
    of the traceback. A small screen shows the first lines only."""
    failure = run.failure
    if failure is None:
        return _stall_text(run.stall, width, keymap, units) if run.stall is not None else Content("Nothing has failed.")
    lines: list[Content | str] = [*sentence(failure.headline, width, "$text-error bold")]
    lines += sentence(failure.detail, width) if failure.detail else []
    lines += _keys([("run.restart", run.restart)] if run.restart else [], width, keymap)
    if failure.hint:
        lines += ["", *sentence(failure.hint, width)]
    if failure.fix:
        lines += sentence(failure.fix, width, "$text-accent")
    if frame := frame_to_edit(failure.traceback):
        lines += _keys([("run.editor", f"open {plain_line(Path(frame.file).name)}, line {frame.line}")], width, keymap)
    others = (f"failed too: {rank_words(failure.others, 8)}",) if failure.others else ()
    followed = (*(failure.followed or others), *([news] if news else []))
    lines += [""] if followed else []
    for one in followed:
        lines += sentence(one, width, MUTED)
    if failure.traceback.strip():
        traceback = clean(failure.traceback).rstrip().split("\n")
        above = len(traceback) - TRACEBACK_LINES
        left_out = [f"{'...' if ascii else '…'} {above} lines above"] if above > 0 else []
        lines += ["", *(Content.styled(line, MUTED) for line in [*left_out, *traceback[-TRACEBACK_LINES:]])]
    return Content("\n").join(lines)


def _stall_text(stall: StallView, width: int, keymap: Mapping[str, str], units: Units) -> Content:
    """Who waits for whom, where the ranks are, and the keys that help."""
    lines: list[Content | str] = []
    for one in stall.waits:  # first: the lines that a small screen shows
        lines += sentence(one, width, "$text-warning bold")
    for one in stall.doing:
        lines += sentence(one, width)
    if not lines:
        lines.append(Content.styled("asking the ranks what they do", MUTED))
    since = clock(stall.since, TIME, units)
    lines += ["", *sentence(f"no steps since {since}: {rank_ranges(stall.ranks)}", width, MUTED)]
    keys = (
        *([("run.editor", "open the script where ranks hang")] if stall.place else []),
        ("run.stacks", "take the stacks of all ranks again"),
        ("run.kill", "kill the selected rank"),
        ("run.restart", "restart the run"),
    )
    return Content("\n").join([*lines, "", *_keys(keys, width, keymap)])


def _keys(keys: Iterable[tuple[str, str]], width: int, keymap: Mapping[str, str]) -> Iterator[Content]:
    """Lines that name the effects of keys. `keys`: pairs of an action and its words."""
    for id, text in keys:
        head = f"{first_key(id, keymap)}  "
        for index, line in enumerate(sentence(text, max(8, width - len(head)))):
            yield Content.assemble((" " * len(head) if index else head, "bold $accent"), line)


def events_text(events: Iterable[EventLine], width: int, units: Units = DEFAULT_UNITS) -> Content:
    lines: list[Content | str] = []
    for event in events:
        at = clock(event.at, TIME, units)
        lines += labelled(at, plain_line(event.text), width, style=EVENT_STYLES.get(event.level, ""))
    return Content("\n").join(lines) if lines else Content("Nothing has happened yet.")


def stacks_text(lines: Sequence[str], width: int) -> Content:
    """Where every rank is in its Python code. A long line is wrapped, not cut: the end of a path matters most. `lines`: from
    `RunClient.stacks`: a line for each group of ranks, below it its calls, indented."""
    drawn: list[Content | str] = []
    for line in map(plain_line, lines):
        indent = min(len(line) - len(line.lstrip(" ")), width // 2)
        first, *others = (
            _broken(line.strip(" "), max(1, width - indent - 2)) if cell_len(line) > width else [line[indent:]]
        )
        parts = [" " * indent + first, *(" " * (indent + 2) + other for other in others)]
        drawn += parts if indent else [Content.styled(part, "bold") for part in parts]
    return Content("\n").join(drawn) if drawn else Content("No rank has a stack.")


def _broken(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken after a space or a slash if possible."""
    lines: list[str] = []
    while cell_len(text) > width:
        room = chop_cells(text[: 4 * width], width)[0] or text[0]
        end = max(room.rfind(" "), room.rfind("/")) + 1 or len(room)
        lines.append(text[:end])
        text = text[end:]
    return [*lines, text]
