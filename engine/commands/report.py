"""One run as a single HTML file to send to a colleague: it loads nothing and runs nothing, and values of the
plan that look like secrets are hidden.

Everything that ranks, nodes or profiles wrote is escaped, and control characters are removed; a policy in the file forbids scripts.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from html import escape

from engine.core.metrics.chart_svg import chart_svg
from engine.core.metrics.resources import RESOURCES
from engine.core.metrics.series import final_values
from engine.core.numbers import clock, duration
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.rank import rank_argv
from engine.core.plan.secrets import hidden, without_secrets
from engine.core.terminal_text import terminal_line
from engine.core.views.origin import Origin
from engine.core.views.view import Snapshot

MOST_CHARTS = 24
MOST_EVENTS = 500
MOST_RANKS = 256

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff; max-width: 900px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } td, th { text-align: left; vertical-align: top; padding: .15em 1.2em .15em 0; }
th { color: #666; font-weight: normal; } pre { background: #f6f6f6; padding: .8em; overflow-x: auto; font-size: 13px; }
svg { max-width: 100%; height: auto; } .failed { color: #a33; }
"""


def report_html(
    snapshot: Snapshot, plan: LaunchPlan, origin: Origin | None, last_lines: str, now: float, *, show_secrets: bool
) -> str:
    """The report. `origin`: what it was started from; None: not recorded. `last_lines`: last lines of the stderr of the rank that failed
    first; empty: none failed. `show_secrets`: show values that look like secrets, in the plan and in what the rank wrote."""
    run = snapshot.run
    shown = str if show_secrets else hidden
    keys = sorted({dump.key for dump in snapshot.series}, key=lambda key: (key in RESOURCES, key != "loss", key))
    drawn = [chart_svg(snapshot.series, key, run.launched_at) for key in keys[:MOST_CHARTS]]
    charts = [one for one in drawn if one is not None]
    body = [
        f"<h1>{_text(run.run)}</h1>",
        f'<p class="{run.state}"><b>{run.state}</b> {_text(run.doing)}</p>',
        _table(_facts(snapshot, now)),
        *_failure(snapshot, last_lines, shown),
        *(["<h2>Curves</h2>", "<p>Strong: the mean over ranks. x: not finite.</p>", *charts] if charts else []),
        "<h2>Plan</h2>",
        _table(_plan(plan if show_secrets else without_secrets(plan))),
        *_origin(origin),
        "<h2>Ranks</h2>",
        _table(_ranks(snapshot), head=("rank", "node", "state", "step", "loss", "note")),
        "<h2>Events</h2>",
        _table([(clock(event.at), event.text) for event in snapshot.events[-MOST_EVENTS:]]),
        f"<p><small>Made by rankdeck, {clock(now)}</small></p>",
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{_text(run.run)}</title><style>{STYLE}</style></head><body>",
            *body,
            "</body></html>",
            "",
        ]
    )


def _facts(snapshot: Snapshot, now: float) -> list[tuple[str, str]]:
    run = snapshot.run
    seconds = (now if run.ended_at is None else run.ended_at) - run.launched_at
    steps = "-" if run.step is None else f"{run.step}/{run.steps}" if run.steps else str(run.step)
    final = final_values(snapshot.series)
    values = [(key, "not finite" if value is None else f"{value:.6g}") for key, value in final.items()]
    return [
        ("launched", clock(run.launched_at)),
        ("duration", duration(seconds)),
        *([("time", run.goodput.until(now).words)] if run.goodput is not None else []),
        *([("lateness", snapshot.late_words)] if snapshot.late_words else []),
        ("attempts", str(run.attempt + 1)),
        ("ranks", f"{run.world_size} on {len(run.nodes)} node(s), {run.backend}"),
        ("program", run.program),
        ("step", steps),
        *values,
    ]


def _failure(snapshot: Snapshot, last_lines: str, shown: Callable[[str], str]) -> list[str]:
    failure = snapshot.run.failure
    if failure is None:
        return []
    parts = [
        "<h2>Failure</h2>",
        f'<p class="failed"><b>{_text(shown(failure.headline))}</b></p>',
        f"<p>{_text(shown(failure.detail))}</p>",
    ]
    if failure.traceback:
        parts.append(_block(shown(failure.traceback)))
    parts.append(f"<p>{_text(failure.hint)}</p>")
    parts += [_block(failure.fix)] if failure.fix else []
    parts += [f"<p>{_text(line)}</p>" for line in failure.followed]
    return [*parts, "<p>Last lines of its stderr:</p>", _block(shown(last_lines))] if last_lines else parts


def _plan(plan: LaunchPlan) -> list[tuple[str, str]]:
    return [
        ("nodes", ", ".join(f"{node.name}: ranks {', '.join(map(str, node.ranks))}" for node in plan.nodes)),
        ("backend", f"{plan.backend.name} on {plan.backend.device} {plan.backend.found}"),
        ("workdir", plan.workdir),
        ("command", shlex.join(rank_argv(plan, "…"))),
        *((name, value) for name, value in {**plan.env_defaults, **plan.env}.items()),
    ]


def _origin(origin: Origin | None) -> list[str]:
    if origin is None:
        return []
    code = origin.code
    rows = [("host", origin.host), *origin.versions.items()]
    if code is not None:
        rows += [("code", code.words), ("changed files", ", ".join(code.changed))]
        rows.append(("new files", ", ".join(code.untracked)))
    return ["<h2>Launched from</h2>", _table(rows)]


def _ranks(snapshot: Snapshot) -> list[Sequence[str]]:
    return [
        (str(one.rank), one.node, one.state, "" if one.step is None else str(one.step),
         "" if one.loss is None else f"{one.loss:.5g}", one.note)
        for one in snapshot.ranks[:MOST_RANKS]
    ]  # fmt: skip


def _table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    lines = ["<tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in head) + "</tr>"] if head else []
    for first, *others in rows:
        lines.append(f"<tr><th>{_text(first)}</th>" + "".join(f"<td>{_text(cell)}</td>" for cell in others) + "</tr>")
    return "<table>" + "\n".join(lines) + "</table>"


def _block(text: str) -> str:
    return "<pre>" + "\n".join(_text(line) for line in text.split("\n")) + "</pre>"


def _text(text: str) -> str:
    """Foreign text of one line, harmless in HTML."""
    return escape(terminal_line(text, colour=False))
