"""The text of the home screen: its lists, and a run. Pure text."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual.content import Content

from engine.core.catalogue import ProfileEntry
from engine.core.metrics.series import overlay
from engine.core.numbers import age, duration, number
from engine.core.plan.profile import Profile
from engine.core.plan.settings import Change
from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import RunSummary, Snapshot
from tui.data.model import LOSS
from tui.text.cells import cell_fit, cut_run, plain_line
from tui.text.lines import LABEL, labelled, wrapped
from tui.text.marks import MUTED, RUN_MARKS, shown
from tui.text.sparkline import spark_values, sparkline

MAX_CURVE = 60  # cells of a curve
MAX_NAME = 22  # cells of a name; a longer one is cut so that the other columns stay visible


def profile_lines(entries: Sequence[ProfileEntry], *, ascii: bool) -> list[Content]:
    """One line for each profile: name, backend, where, what; or name and problem."""
    name = min(MAX_NAME, max((cell_len(plain_line(entry.name)) for entry in entries), default=0))
    where = max((cell_len(_where(entry.profile)) for entry in entries if entry.profile), default=0)
    lines = []
    for entry in entries:
        start = cell_fit(plain_line(entry.name), name, ascii=ascii)
        if entry.profile is None:
            mark = "X" if ascii else "✖"
            lines.append(
                Content.assemble(start, (f"  {mark} {plain_line(entry.error or 'unreadable')}", "$text-error"))
            )
            continue
        profile = entry.profile
        facts = f"  {plain_line(profile.backend.name):<5} {cell_fit(_where(profile), min(where, 20), ascii=ascii)}"
        recipe = profile.recipe
        what = plain_line(recipe.name or (recipe.script or "").rsplit("/", 1)[-1] or recipe.module or "")
        lines.append(Content.assemble(start, (f"{facts}  {what}", MUTED)))
    return lines


def _where(profile: Profile) -> str:
    return plain_line(profile.layout.words)


def run_lines(runs: Sequence[RunSummary], now: float, *, ascii: bool) -> list[Content]:
    """One line for each run: state, name, how long or how long ago, and the newest thing to know about it."""
    names = _distinct(runs, ascii=ascii)
    name = max(map(cell_len, names), default=0)
    lines = []
    for run, own in zip(runs, names, strict=True):
        ended = run.state in ENDED_WORDS
        when = f"{age(now - (run.ended_at or now))} ago" if ended else duration(now - run.launched_at)
        line = Content.assemble(
            (RUN_MARKS[run.state].sign(ascii=ascii), RUN_MARKS[run.state].style),
            f" {cell_fit(own, name, ascii=ascii)}  ",
            (f"{when:>10}  ", MUTED),
            (_news(run), "$text-error" if run.state in ("failed", "holding", "unreadable") else ""),
        )
        lines.append(shown(line, ascii=ascii))
    return lines


def _distinct(runs: Sequence[RunSummary], *, ascii: bool) -> list[str]:
    names = [plain_line(run.name) for run in runs]
    counts = Counter(names)
    distinct = []
    for run, name in zip(runs, names, strict=True):
        title = f"{name}-{plain_line(run.run).rpartition('-')[2]}" if counts[name] > 1 else name
        distinct.append(cut_run(title, MAX_NAME, ascii=ascii))
    return distinct


def _news(run: RunSummary) -> str:
    if run.state != "unreadable" and not run.reachable:
        return f"{'supervisor' if run.elsewhere else 'no supervisor'} on {plain_line(run.host)}"
    if run.state in ("failed", "holding", "stopped", "unreadable") and run.reason:
        return plain_line(run.reason)
    if run.state == "succeeded" and run.loss is not None:
        return f"loss {number(run.loss, 7).strip()}"
    return _steps(run) if run.step is not None else run.state


def _steps(run: RunSummary) -> str:
    return f"step {run.step}" + (f"/{run.steps}" if run.steps else "")


class Look(NamedTuple):
    """Facts from the files of a run. `changed`: since the run of its profile before it; None: there is none, or it can't be read."""

    snapshot: Snapshot
    changed: Sequence[Change] | None


def run_text(run: RunSummary, width: int, now: float, *, key: str, ascii: bool, look: Look | None = None) -> Content:
    """A run as `ps` knows it, what its files add, and how to attach to it. `key`: watches it. `look`: None as long as they are not read."""
    mark, failure = RUN_MARKS[run.state], look and look.snapshot.run.failure
    lines: list[Content | str] = [Content.styled(f"{mark.sign(ascii=ascii)} {run.state}", mark.style), ""]
    if failure or run.reason:
        lines += labelled("why", plain_line(failure.headline if failure else run.reason), width, style="$text-error")
    for words in filter(None, (failure.detail, failure.hint) if failure else ()):
        lines += labelled("", plain_line(words), width)
    lines += _look_lines(run, look, width, ascii=ascii) if look else ()
    if run.step is not None:
        lines += labelled("progress", _steps(run), width)
    if run.loss is not None:
        lines += labelled("loss", number(run.loss, 7), width)
    lines += labelled("run", f"{plain_line(run.run)}, attempt {run.attempt}", width)
    lines += labelled("ranks", f"{run.world_size} over {plain_line(run.backend)}", width)
    lines += labelled("launched", f"{age(now - run.launched_at)} ago, on {plain_line(run.host)}", width)
    if run.ended_at is not None:
        lines += labelled("ended", f"{age(now - run.ended_at)} ago", width)
    lines += ["", *labelled(key, _effect(run), width)]
    there = f"ssh -t {plain_line(run.host)} " if run.elsewhere else ""
    lines += labelled("command", f"{there}rankdeck attach {plain_line(run.run)}", width)
    return shown(Content("\n").join(lines), ascii=ascii)


def _look_lines(run: RunSummary, look: Look, width: int, *, ascii: bool) -> Iterator[Content]:
    snapshot = look.snapshot
    if look.changed:
        words = ", ".join(f"{one.words} (was {one.before or 'not set'})" for one in look.changed)
        yield from labelled("changed", plain_line(words), width)
    if curve := overlay(snapshot.series, LOSS, run.launched_at):
        cells = max(1, min(MAX_CURVE, width - LABEL - 1))
        yield from labelled("curve", [sparkline(spark_values(curve, cells), cells, ascii=ascii).strip()], width)
    cause = snapshot.run.failure.rank if snapshot.run.failure else None
    said = {rank.rank: rank.last_line for rank in snapshot.ranks if rank.last_line}
    if said:
        rank = cause if cause in said else min(said)
        yield from labelled(f"rank {rank}", plain_line(said[rank]), width)


def _effect(run: RunSummary) -> str:
    if run.state in ENDED_WORDS:
        return "shows its log, curves and events"
    if run.state == "unreadable":
        return "says what is wrong with its files"
    if run.elsewhere:
        return "can't watch it from this host"
    if not run.reachable:
        return "starts a new supervisor, which takes over the ranks as they are"
    return "watches it"


def parting_words(runs: Sequence[RunSummary]) -> str | None:
    """The text to print about active runs when the app ends; None if there are none."""
    active = [run for run in runs if run.state not in {*ENDED_WORDS, "unreadable"}]
    if not active:
        return None
    if len(active) == 1:
        return f"{plain_line(active[0].name)} keeps running: rankdeck attach {plain_line(active[0].run)}"
    return f"{len(active)} runs keep running: rankdeck ps lists them"


def first_steps(width: int, key: str) -> Content:
    """Shown instead of a plan while there is no profile. `key`: makes one."""
    lines = (
        "There is no profile yet.",
        "",
        "A profile describes a run: a backend, the nodes, and a recipe or your own script.",
        "",
        f"Press {key} to create one. The plan is shown beside the form.",
    )
    return Content("\n".join("\n".join(wrapped(line, width)) for line in lines))
